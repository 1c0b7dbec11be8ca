"""A mixture of Gaussians and its parameters, as lines of text and in JSON."""

from typing import TYPE_CHECKING, Any

import numpy as np

from epvi.cli.describe.numerals import LARGEST_MATRIX, numbers_text
from epvi.wire.supports import describe

if TYPE_CHECKING:
    from epvi.gaussian.mixture import GaussianMixture
    from epvi.parameters.space import Space

# Significant digits of a correlation: as many as anybody compares. Judgement.
_CORRELATION_DIGITS = 3


def parameter_lines(space: "Space") -> list[tuple[str, str]]:
    """The parameters, their shapes and supports."""
    lines = []
    for parameter in space.parameters:
        support = _support(describe(parameter.name, parameter.support))
        shape = f"shape {parameter.shape}, " if parameter.shape else ""
        lines.append(("", f"{parameter.name}: {shape}{support}"))
    for group in space.exchangeable:
        lines.append(("", f"exchangeable (along the first axis, or axis k of name@k): {', '.join(group)}"))
    return lines


def _support(described: Any) -> str:
    """A support as text: an interval with its ends; of an array, that of every entry."""
    if isinstance(described, str):
        return described.replace("_", " ")
    (word, bounds), *_ = described.items()
    if word == "independent":
        return _support(bounds[0])
    ends = [f"array of shape {bound['shape']}" if isinstance(bound, dict) else f"{bound:g}" for bound in bounds]
    return f"{word.replace('_', ' ')} {' to '.join(ends)}"


def component_lines(mixture: "GaussianMixture", space: "Space") -> list[tuple[str, str]]:
    """Weight, and mean ± sd of every coordinate."""
    lines = []
    packing, d = mixture.structure.packing, mixture.dim
    covariances = np.asarray(mixture.covariances()).reshape(np.shape(mixture.roots))
    for k, (weight, mean) in enumerate(zip(np.asarray(mixture.weights), np.asarray(mixture.means), strict=True)):
        variances = packing.diagonal(covariances[k], d)
        lines.append(("", f"component {k + 1}, weight {weight:.4g}:"))
        for i, (value, sd) in enumerate(zip(mean, np.sqrt(variances), strict=True)):
            lines.append(("", f"  {space.coordinate(i)}: {value:.6g} ± {sd:.3g}"))
        if packing.whole:
            lines += _correlations(packing.dense(covariances[k], d), space)
    return lines


def _correlations(covariance: np.ndarray, space: "Space") -> list[tuple[str, str]]:
    """Every correlation, a line for each coordinate but the first."""
    d = len(covariance)
    if d > LARGEST_MATRIX:
        return [("", f"  and their {d * (d - 1) // 2:,} correlations (epvi show --json prints the covariances)")]
    scale = np.sqrt(np.diag(covariance))
    correlations = covariance / np.outer(scale, scale)
    lines = []
    for i in range(1, d):
        numbers = numbers_text(tuple(correlations[i, :i]), _CORRELATION_DIGITS)
        lines.append(("", f"  correlations of {space.coordinate(i)} with the parameters before it: {numbers}"))
    return lines


def mixture_json(mixture: "GaussianMixture", space: "Space") -> dict[str, Any]:
    """The mixture's numbers by name, for JSON."""
    return {
        "structure": structure_name(mixture),
        "coordinates": [space.coordinate(i) for i in range(space.dim)],
        "weights": np.asarray(mixture.weights).tolist(),
        "means": np.asarray(mixture.means).tolist(),
        "covariances": np.asarray(mixture.covariances()).tolist(),
    }


def structure_name(mixture: "GaussianMixture") -> str:
    """The name of its covariance structure."""
    return mixture.structure.name
