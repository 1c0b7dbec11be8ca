"""A mixture of Gaussians and its parameters, in words and in JSON."""

from typing import TYPE_CHECKING, Any

import numpy as np

from epvi.cli.describe.numerals import numbers_text
from epvi.wire.supports import describe

if TYPE_CHECKING:
    from epvi.gaussian.mixture import GaussianMixture
    from epvi.parameters.space import Space

# Up to so many parameters all correlations are printed.
_MOST_CORRELATED = 30


def parameter_lines(space: "Space") -> list[tuple[str, str]]:
    """The parameters, their shapes and supports."""
    lines = []
    for parameter in space.parameters:
        said = _support(describe(parameter.name, parameter.support))
        shape = f"shape {parameter.shape}, " if parameter.shape else ""
        lines.append(("", f"{parameter.name}: {shape}{said}"))
    for group in space.exchangeable:
        lines.append(("", f"exchangeable along their first axis: {', '.join(group)}"))
    return lines


def _support(described: Any) -> str:
    """A support in words: an interval with its ends, and that of every entry of an array."""
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
    covariances = np.asarray(mixture.covariances())
    for k, (weight, mean) in enumerate(zip(np.asarray(mixture.weights), np.asarray(mixture.means), strict=True)):
        variances = np.diag(covariances[k]) if covariances.ndim == 3 else np.broadcast_to(covariances[k], mean.shape)
        lines.append(("", f"component {k + 1}, weight {weight:.4g}:"))
        for i, (value, sd) in enumerate(zip(mean, np.sqrt(variances), strict=True)):
            lines.append(("", f"  {space.coordinate(i)}: {value:.6g} ± {sd:.3g}"))
        if covariances.ndim == 3:
            lines += _correlations(covariances[k], space)
    return lines


def _correlations(covariance: np.ndarray, space: "Space") -> list[tuple[str, str]]:
    """Every correlation, a line for each coordinate but the first."""
    d = len(covariance)
    if d > _MOST_CORRELATED:
        return [("", f"  and their {d * (d - 1) // 2:,} correlations (epvi show --json prints the covariances)")]
    scale = np.sqrt(np.diag(covariance))
    correlations = covariance / np.outer(scale, scale)
    names = [space.coordinate(i) for i in range(d)]
    return [
        (
            "",
            f"  correlations of {names[i]} with those before it: {numbers_text(tuple(correlations[i, :i]), 3)}",
        )
        for i in range(1, d)
    ]


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
    return type(mixture.structure).__name__.lower()
