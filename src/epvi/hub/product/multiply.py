"""`multiply`: the product of Gaussian mixtures, by the product method that the user chose."""

import math
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor

import jax
import numpy as np

from epvi.gaussian.mixture import GaussianMixture
from epvi.ground.errors import EpviError
from epvi.ground.float64 import to_numpy
from epvi.ground.seeds import Seed, as_key
from epvi.ground.status import Status, StatusCode
from epvi.ground.verb import verb
from epvi.hub.product.anchored import Anchored
from epvi.hub.product.exact import Exact
from epvi.hub.product.result import Product, ProductMixture, exactly
from epvi.hub.product.stack import MAX_GIGABYTES, check, gigabytes, in_one_structure

# Largest number of components that is enumerated by default. Judgement: far below `Exact`'s own budget of 2^20, because
# later steps (density, draws, certificate) pay for every component of the product.
_EXACT_UP_TO = 10_000


@verb("multiplying the shards' fits")
def multiply(
    mixtures: Iterable[GaussianMixture],
    product: Product | None = None,
    *,
    seed: Seed = 0,
    executor: Executor | None = None,
) -> ProductMixture:
    """The normalised product Π_m q_m(θ) of mixtures over the same θ.

    `product` is the product method: `Exact()`, `Chain()`, `Subset()` or `Anchored()`. The default is `Exact()` for up
    to 10,000 components (if they fit in memory), else `Anchored()`. Mixtures may differ in their number of components
    and in covariance structure; the product has the simplest structure that can represent all of them. `executor` runs
    the groups of `Subset`.
    """
    mixtures = _as_list(mixtures)
    check(mixtures)
    if product is not None and not isinstance(product, Product):
        raise EpviError(f"product is {product!r}: pass Exact(), Chain(), Subset() or Anchored(), with its brackets.")
    key = as_key(seed)
    if len(mixtures) == 1:
        status = Status(StatusCode.EXACT, "exact: the product of one mixture is that mixture.")
        return ProductMixture(mixtures[0], exactly(np.asarray(0.0)), None, status)
    with jax.enable_x64(True):
        method = _by_size(mixtures) if product is None else product
        made = method.multiply(in_one_structure(mixtures), key=key, executor=executor)
        mixture, log_normaliser = to_numpy((made.mixture, made.log_normaliser))
    if not (np.all(np.isfinite(mixture.means)) and np.all(mixture.weights >= 0)):
        raise EpviError(
            "the product left the range of float64, because the scales of the shards' components are too extreme:"
            " rescale the parameters."
        )
    return ProductMixture(mixture, log_normaliser, made.diagnostics, made.status)


def _as_list(mixtures: Iterable[GaussianMixture]) -> list[GaussianMixture]:
    if isinstance(mixtures, GaussianMixture) or not isinstance(mixtures, Iterable):
        raise EpviError("mixtures is not a list: pass a list of GaussianMixture.")
    made = list(mixtures)
    for m, mixture in enumerate(made):
        if not isinstance(mixture, GaussianMixture):
            raise EpviError(f"mixture {m} is a {type(mixture).__name__}: pass a list of GaussianMixture.")
    return made


def _by_size(mixtures: Sequence[GaussianMixture]) -> Product:
    total = math.prod(mixture.num_components for mixture in mixtures)
    if total > _EXACT_UP_TO or gigabytes(total, mixtures) > MAX_GIGABYTES:
        return Anchored()
    return Exact(max_components=_EXACT_UP_TO)
