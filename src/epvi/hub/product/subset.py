"""Sequential subset products (the paper, "Sequential subposterior subset products").

Groups of M̃ mixtures are multiplied, each product is reduced to R equally weighted components, and the results are
grouped again until one is left. A mixture without a group joins the next round. If the product of a group is small
enough, all its weights are computed and R components are chosen by systematic resampling; otherwise Markov chains
sample it (`chain.py`). The groups of a round are independent and may run on an executor, with the same result.
"""

import dataclasses
import math
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from epvi.gaussian.mixture import Estimate, GaussianMixture
from epvi.gaussian.structure import Structure
from epvi.ground import validation
from epvi.ground.compiled import compiled
from epvi.ground.errors import EpviError
from epvi.ground.float64 import AnyArray, to_numpy
from epvi.ground.status import Status, StatusCode
from epvi.hub.product.chain import Chain
from epvi.hub.product.exact import fuse, halves, pair_log_weights, pairs
from epvi.hub.product.fold import fold_singles
from epvi.hub.product.resampling import systematic
from epvi.hub.product.result import Product, ProductMixture
from epvi.hub.product.stack import StackedComponents, check_memory, finish, reweighted


@dataclasses.dataclass(frozen=True)
class SubsetDiagnostics:
    """How the groups were multiplied.

    Attributes:
        groups: number of groups in every round.
        enumerated: number of these whose weights were all computed.
        complaints: status texts of chains that did not mix.
    """

    groups: tuple[int, ...]
    enumerated: tuple[int, ...]
    complaints: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Subset(Product):
    """Sequential subset products: multiply groups, keep a sample of each product's components, repeat.

    Attributes:
        group_size: mixtures per group, M̃.
        num_samples: components kept of each group's product, R.
        max_components: largest product of a group that is enumerated.
        chain: settings of the chains that sample larger products.
    """

    group_size: int = 2
    # Components. Judgement: pairs of R components have 250,000 products, which can be enumerated.
    num_samples: int = 500
    # Components: 262,144, enough for pairs of the default `num_samples`. `Exact` enumerates four times as many.
    max_components: int = 2**18
    chain: Chain = dataclasses.field(default_factory=Chain)

    def __post_init__(self) -> None:
        validation.check_settings(self, group_size=2, num_samples=1, max_components=1)
        if not isinstance(self.chain, Chain):
            raise EpviError(f"chain is {self.chain!r}: pass Chain(...), with its brackets.")

    def multiply(
        self, mixtures: Sequence[GaussianMixture], *, key: jax.Array, executor: Executor | None
    ) -> ProductMixture:
        """At most about `num_samples` components; equally weighted unless the last product was kept whole."""
        check_memory(self.num_samples, mixtures)
        waiting, history = fold_singles(mixtures), []
        while len(waiting) > 1:
            key, round_key = jax.random.split(key)
            groups = [waiting[i : i + self.group_size] for i in range(0, len(waiting), self.group_size)]
            odd = groups.pop() if len(groups[-1]) == 1 else []
            keys = np.asarray(jax.random.key_data(jax.random.split(round_key, len(groups))))
            made = list((executor.map if executor else map)(_multiply_group, groups, [self] * len(groups), keys))
            waiting = [one.mixture for one in made] + odd
            history.append(made)
        return self._result(waiting[0], history)

    def _result(self, mixture: GaussianMixture, history: list[list["_SubsetGroup"]]) -> ProductMixture:
        made = [one for round_ in history for one in round_]
        complaints = tuple(one.complaint for one in made if one.complaint is not None)
        diagnostics = SubsetDiagnostics(
            groups=tuple(len(round_) for round_ in history),
            enumerated=tuple(sum(one.log_normaliser is not None for one in round_) for round_ in history),
            complaints=tuple(complaint.text for complaint in complaints),
        )
        if complaints:
            text = f"{len(complaints)} of {len(made)} groups: {complaints[0]} Or raise Subset's max_components."
            status = Status(complaints[0].code, text)
        elif any(one.cut for one in made):
            text = f"done in {len(history)} rounds; compare another seed to see the Monte Carlo error."
            status = Status(StatusCode.SAMPLED, text)
        else:
            status = Status(StatusCode.EXACT, f"exact: all {mixture.num_components:,} components, nothing was cut.")
        return ProductMixture(mixture, _total(made), diagnostics, status)


def _total(made: list["_SubsetGroup"]) -> Estimate | None:
    """The product of the groups' normalisers, an unbiased estimate of ∫ Π q_m as in sequential Monte Carlo.

    A single run gives no standard error (NaN), unless all products were kept whole and the estimate is exact.
    """
    logs = [one.log_normaliser for one in made if one.log_normaliser is not None]
    if len(logs) < len(made):
        return None
    return Estimate(np.asarray(sum(logs)), np.asarray(np.nan if any(one.cut for one in made) else 0.0))


class _SubsetGroup(NamedTuple):
    """The product of one group."""

    mixture: GaussianMixture
    log_normaliser: AnyArray | None  # None if the product was sampled by chains
    cut: bool  # whether only a sample of its components was kept
    complaint: Status | None = None  # the chains' status, if they did not mix


def _multiply_group(mixtures: list[GaussianMixture], settings: Subset, key_data: np.ndarray) -> _SubsetGroup:
    """Multiply one group; runs in this process or in a worker process, hence the key as plain data."""
    with jax.enable_x64(True):
        key = jax.random.wrap_key_data(jnp.asarray(key_data))
        total = math.prod(mixture.num_components for mixture in mixtures)
        if total > settings.max_components:
            chain = dataclasses.replace(settings.chain, num_samples=settings.num_samples)
            made = chain.multiply(mixtures, key=key, executor=None)
            complaint = None if made.status.ok else made.status
            return to_numpy(_SubsetGroup(made.mixture, None, cut=True, complaint=complaint))
        structure, m = mixtures[0].structure, len(mixtures)
        left, right = halves(mixtures)
        if total <= settings.num_samples:
            log_w, mixture = finish(structure, m, pairs(structure, left, right))
            return to_numpy(_SubsetGroup(mixture, np.logaddexp.reduce(log_w), cut=False))
        log_w = np.asarray(pair_log_weights(structure, m, left, right))
        chosen = systematic(float(jax.random.uniform(key)), log_w, settings.num_samples)
        return to_numpy(_SubsetGroup(_pick(structure, left, right, chosen), np.logaddexp.reduce(log_w), cut=True))


@compiled
def _pick(
    structure: Structure, left: StackedComponents, right: StackedComponents, chosen: Int[AnyArray, " R"]
) -> GaussianMixture:
    """The equally weighted mixture of the chosen pairs."""
    n = len(right.log_mass)
    a = jax.tree.map(lambda x: x[chosen // n], left)
    b = jax.tree.map(lambda x: x[chosen % n], right)
    _, mixture = finish(structure, 2, jax.vmap(lambda one, other: fuse(structure, one, other))(a, b))
    return reweighted(mixture, jnp.zeros(len(chosen)))
