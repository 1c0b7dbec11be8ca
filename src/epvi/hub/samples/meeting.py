"""Gibbs sampling of a product of kernel density estimates, alternating between component indices k· and θ.

Every shard is a mixture Σ_k w_mk N(θ | μ_mk, Λ_m⁻¹) with one component per draw, all with the same precision. Given θ
the indices are independent, p(k_m|θ) ∝ w_mk N(θ | μ_mk, Λ_m⁻¹), and given the indices θ ~ N(Λ⁻¹ Σ_m Λ_m μ_mk, Λ⁻¹) with
Λ = Σ_m Λ_m. The target is that of the Metropolis chain over k· of Neiswanger et al. (2013). That chain proposes indices
uniformly, and with as many components as draws it rarely accepts (1 in 100 at d = 10); a Gibbs step updates all M
indices at once.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from epvi.gaussian.packing import Packing
from epvi.ground.errors import EpviError

# Most memory for the tables of one shard, (chains, draws) each, in GB (10⁹ bytes). Judgement: half of the budget of a
# product's components (product/stack.py).
_MAX_GIGABYTES = 2.0


class Kernels(NamedTuple):
    """A shard's density estimate: a mixture with one precision for all components."""

    means: Float[np.ndarray, "n d"]  # μ_mk
    log_weights: Float[np.ndarray, " n"]  # log w_mk
    root: Float[np.ndarray, "..."]  # L with L Lᵀ = Λ_m, packed
    packing: Packing  # how the root is packed


class Kept(NamedTuple):
    """The kept draws of all chains, and the product's log density at each, up to a constant."""

    theta: Float[np.ndarray, "C n d"]
    log_density: Float[np.ndarray, "C n 1"]


class Meeting:
    """Gibbs sampler of the product of M kernel density estimates, for many chains in parallel."""

    def __init__(self, shards: list[Kernels], rng: np.random.Generator) -> None:
        self._rng = rng
        self._shards = shards
        self._packing = shards[0].packing
        self._white = [self._packing.whiten(shard.root, shard.means) for shard in shards]
        self._bias = [
            shard.log_weights - 0.5 * np.sum(white**2, axis=1) for shard, white in zip(shards, self._white, strict=True)
        ]
        total = np.sum([self._packing.precision(shard.root) for shard in shards], axis=0)
        self._scale = self._packing.inverse(self._packing.root(total))

    def step(self, theta: Float[np.ndarray, "C d"]) -> tuple[np.ndarray, Float[np.ndarray, " C"]]:
        """One Gibbs step of all chains: the new θ, and the log density at the old θ."""
        eta, log_density, packing = np.zeros_like(theta), np.zeros(len(theta)), self._packing
        for shard, white, bias in zip(self._shards, self._white, self._bias, strict=True):
            here = packing.whiten(shard.root, theta)
            log_joint = here @ white.T + bias
            largest = np.max(log_joint, axis=1)
            cumulative = np.cumsum(np.exp(log_joint - largest[:, None]), axis=1)
            # Inverse-CDF sampling with u in (0, 1], so that a component of weight zero is never chosen.
            aim = (1 - self._rng.uniform(size=len(theta))) * cumulative[:, -1]
            index = np.sum(cumulative < aim[:, None], axis=1)
            log_density += largest + np.log(cumulative[:, -1]) - 0.5 * np.sum(here**2, axis=1)
            eta += packing.rows_times(white[index], packing.transposed(shard.root))
        noise = self._rng.standard_normal(theta.shape)
        # θ = Λ⁻¹ η + L⁻ᵀ z for row vectors, where `_scale` is L⁻¹ and Λ⁻¹ = L⁻ᵀ L⁻¹.
        moved = packing.rows_times(eta, packing.transposed(self._scale)) + noise
        return packing.rows_times(moved, self._scale), log_density

    def run(self, theta: Float[np.ndarray, "C d"], kept: int, thin: int) -> tuple[np.ndarray, Kept]:
        """Run every chain for `kept` x `thin` steps: their last states, and every `thin`-th state."""
        rows = []
        for _ in range(kept):
            for _ in range(thin - 1):
                theta, _ = self.step(theta)
            after, log_density = self.step(theta)
            rows.append((theta, log_density))
            theta = after
        thetas, log_densities = (np.stack(part, axis=1) for part in zip(*rows, strict=True))
        return theta, Kept(thetas, log_densities[:, :, None])


def check_memory(num_chains: int, num_draws: int) -> None:
    """Refuse tables that exceed the memory budget."""
    need = 3 * 8e-9 * num_chains * num_draws
    if need > _MAX_GIGABYTES:
        raise EpviError(
            f"{num_chains} chains over {num_draws:,} draws of a shard need about {need:.0f} GB, over the budget of"
            f" {_MAX_GIGABYTES:g} GB: thin the draws (draws[::10]), or lower num_chains."
        )
