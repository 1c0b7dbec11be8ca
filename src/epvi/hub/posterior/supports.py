"""Chooses the supports of group effects: weighted draws of the shared parameters φ that represent their posterior.

Takes a posterior of φ; gives its scored draws with their importance weights, fewer if so many are not wanted, or draws
of its mixture if none were scored.
"""

import numpy as np
from jaxtyping import Float, Int

from epvi.gaussian.quasi_random import draw, uniform_points
from epvi.hub.refine.refine import Refinable

# Draws that together have less than this part of all weight are left out. Judgement: they move no mean or sd by 1 %.
_NEGLIGIBLE = 1e-5


def supports_of(
    posterior: Refinable, most: int, key: tuple[int, ...]
) -> tuple[Float[np.ndarray, "S p"], Float[np.ndarray, " S"]]:
    """At most so many supports, and their weights, which sum to 1."""
    found = posterior.certificate
    if found is None:
        return draw(posterior.mixture, uniform_points(most, posterior.mixture.dim + 1, key)), np.full(most, 1 / most)
    weights = found.weights if found.corrects else found.own
    weights = weights / np.sum(weights)
    order = np.argsort(weights, kind="stable")
    kept = np.sort(order[np.cumsum(weights[order]) > _NEGLIGIBLE])
    if len(kept) > most:
        kept, counts = np.unique(resampled(weights, most, np.random.default_rng(key)), return_counts=True)
        weights[kept] = counts
    return found.theta[kept], weights[kept] / np.sum(weights[kept])


def resampled(weights: Float[np.ndarray, " S"], number: int, rng: np.random.Generator) -> Int[np.ndarray, " n"]:
    """Systematic resampling: a draw of weight w is chosen n·w times, rounded up or down; in random order."""
    places = (np.arange(number) + rng.uniform()) / number
    chosen = np.searchsorted(np.cumsum(weights), places * np.sum(weights))
    return rng.permutation(np.minimum(chosen, len(weights) - 1))
