"""Sequential subset products (the paper, "Sequential subposterior subset products").

Groups of M̃ mixtures are multiplied, each product is cut to R equally weighted components, and the results are grouped
again until one is left; an odd one waits for the next round. A group whose product is small enough is enumerated
(weights first, parameters only for the components kept) and resampled systematically; a larger one is sampled by the
chain. A round's groups do not depend on each other: they can run on an executor, with the same result.
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
    """Round by round: the number of groups, and how many of them were enumerated; what the chains complained of."""

    groups: tuple[int, ...]
    enumerated: tuple[int, ...]
    complaints: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Subset(Product):
    """Multiply groups of `group_size`, keep `num_samples` components of each product, repeat.

    A group with at most `max_components` products is enumerated; a larger one is sampled by `chain`'s settings.
    """

    group_size: int = 2
    num_samples: int = 500
    max_components: int = 2**18
    chain: Chain = dataclasses.field(default_factory=Chain)

    def __post_init__(self) -> None:
        validation.check_settings(self, group_size=2, num_samples=1, max_components=1)
        if not isinstance(self.chain, Chain):
            raise EpviError(f"chain is {self.chain!r}: pass Chain(...), with its brackets.")

    def multiply(
        self, mixtures: Sequence[GaussianMixture], *, key: jax.Array, executor: Executor | None
    ) -> ProductMixture:
        """About `num_samples` components: weighted where the last product was enumerated whole, else equal."""
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
            text = f"done in {len(history)} rounds; run another seed to see the Monte Carlo error."
            status = Status(StatusCode.SAMPLED, text)
        else:
            status = Status(StatusCode.EXACT, f"exact: all {mixture.num_components:,} components, nothing was cut.")
        return ProductMixture(mixture, _total(made), diagnostics, status)


def _total(made: list["_SubsetGroup"]) -> Estimate | None:
    """The product of the groups' normalisers: unbiased for ∫ Π q_m, as in sequential Monte Carlo.

    One run does not say how far it is off, so its standard error is NaN unless nothing was cut.
    """
    logs = [one.log_normaliser for one in made if one.log_normaliser is not None]
    if len(logs) < len(made):
        return None
    return Estimate(np.asarray(sum(logs)), np.asarray(np.nan if any(one.cut for one in made) else 0.0))


class _SubsetGroup(NamedTuple):
    """A group's product: its normaliser if it was enumerated, whether it was cut to R, what its chain complained of."""

    mixture: GaussianMixture
    log_normaliser: AnyArray | None
    cut: bool
    complaint: Status | None = None


def _multiply_group(mixtures: list[GaussianMixture], settings: Subset, key_data: np.ndarray) -> _SubsetGroup:
    """One group, in this process or another."""
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
    """The equally weighted mixture of some of the pairs."""
    n = len(right.log_mass)
    a = jax.tree.map(lambda x: x[chosen // n], left)
    b = jax.tree.map(lambda x: x[chosen % n], right)
    _, mixture = finish(structure, 2, jax.vmap(lambda one, other: fuse(structure, one, other))(a, b))
    return reweighted(mixture, jnp.zeros(len(chosen)))
