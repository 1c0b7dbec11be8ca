"""Check, align and multiply shard fits: gives the parts of a posterior."""

import dataclasses
from collections.abc import Iterable, Sequence

import jax
import numpy as np
from jaxtyping import Float

from epvi.ground.errors import EpviError
from epvi.ground.seeds import Seed, SeedStream, as_key
from epvi.ground.status import Status, StatusCode
from epvi.hub.agreement.compatibility import check_belonging
from epvi.hub.posterior.parts import Choices, Parts
from epvi.hub.product.first_consensus import near_points
from epvi.hub.product.multiply import multiply
from epvi.hub.product.result import Product
from epvi.parameters.alignment import aligned, nearest
from epvi.wire.shard_fit import ShardFit


def checked_and_multiplied(
    fits: Iterable[ShardFit], product: Product | None, seed: Seed, *, accept_unconverged: bool
) -> Parts:
    """The parts of the posterior of fits in any order; fits that cannot be combined are refused."""
    fits = _sorted(fits)
    check_belonging(fits, accept_unconverged=accept_unconverged)
    return multiplied(fits, product, seed)


def multiplied(fits: Sequence[ShardFit], product: Product | None, seed: Seed) -> Parts:
    """The same without checks, for sorted fits of one split of one table.

    The checks would refuse shards whose rows have equal values, which small shards of one table may have.
    """
    mixtures = aligned(fits[0].space, [fit.mixture for fit in fits])
    key = as_key(seed)
    lacking = [fit for fit in fits if not fit.stands_alone]
    if lacking:
        mixtures.append(near_points(mixtures, _points(fits)))
    made = multiply(mixtures, product, seed=jax.random.fold_in(key, SeedStream.PRODUCT))
    if lacking:
        # Information has no normaliser.
        made = dataclasses.replace(made, log_normaliser=None, status=_needs_rounds(lacking, len(fits)))
    return Parts(made, fits[0].space, tuple(fits), Choices(product, tuple(jax.random.key_data(key).tolist())))


def _points(fits: Sequence[ShardFit]) -> Float[np.ndarray, "M d"]:
    """Where each shard's fit holds: the point of its information, or its mean."""
    points = [np.asarray(fit.mixture.mean()) if fit.point is None else fit.point for fit in fits]
    space = fits[0].space
    if space.exchangeable:
        points = [nearest(space, point, points[0], np.ones(space.dim)).point(point) for point in points]
    return np.stack(points)


def _needs_rounds(lacking: Sequence[ShardFit], num_shards: int) -> Status:
    text = (
        f"needs a second round: {len(lacking)} of {num_shards} shards (the first: {lacking[0].label}) do not bound all"
        " parameters by themselves, and their information says what all bound together only where all are asked: have"
        " the sites score draws of it, and refine it by them (epvi certify, epvi refine; certify=True in epvi.fit)."
    )
    return Status(StatusCode.NEEDS_ROUNDS, text)


def _sorted(fits: Iterable[ShardFit]) -> list[ShardFit]:
    if isinstance(fits, ShardFit) or not isinstance(fits, Iterable):
        raise EpviError("fits is not a list: pass a list of shard fits.")
    made = list(fits)
    if not made:
        raise EpviError("there are no fits to combine: pass at least one.")
    for fit in made:
        if not isinstance(fit, ShardFit):
            raise EpviError(f"one of the fits is a {type(fit).__name__}: pass what epvi.fit_shard gives.")
    return sorted(made, key=lambda fit: fit.shard)
