"""Everything that is in a file, in words: nothing that is written is left unsaid."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from epvi.cli.output import counted, size_of
from epvi.ground.printable import shown
from epvi.ground.text_table import lined_up
from epvi.wire.codec import mixture_arrays
from epvi.wire.supports import describe

if TYPE_CHECKING:
    from epvi.gaussian.mixture import GaussianMixture
    from epvi.hub.posterior.posterior import Posterior
    from epvi.parameters.space import Space
    from epvi.wire.column_stats import Stats
    from epvi.wire.shard_fit import Provenance, ShardFit

# Up to so many parameters all correlations are printed.
_MOST_CORRELATED = 30


def of_fit(file: Path, fit: "ShardFit") -> str:
    """A shard's fit."""
    made = fit.made_of
    rows = "no rows (it stands in for a missing site)" if fit.is_stand_in else f"{fit.num_rows:,} rows"
    bound = f"{_number(fit.elbo.value)} ± {_number(fit.elbo.standard_error)} nats"
    count = sum(array.size for array in mixture_arrays(fit.mixture).values())
    lines = [
        ("file", f"{file}, {size_of(file)}, a shard's fit"),
        ("study", made.study or "none"),
        ("shard", fit.label),
        ("stands for", f"{rows}, and {fit.prior} of the prior"),
        ("status", fit.status.text),
        ("bound", f"{bound}, {_number(round(fit.gap, 9) + 0)} nats below the evidence as far as its own draws tell"),
        ("bound by sweep", ", ".join(map(_number, fit.history)) or "none"),
        ("effort", f"{fit.passes} passes over all rows in {fit.pass_seconds:g} s, all in all {fit.seconds:g} s"),
        *made_of_lines(made),
        ("parameters", ""),
        *parameter_lines(fit.space),
        ("mixture", f"{fit.mixture.num_components} x {_family(fit.mixture)} Gaussian over unconstrained parameters"),
        *component_lines(fit.mixture, fit.space),
    ]
    ending = (
        f"That is all: {count:,} numbers of the mixture, and the text above. No row and no value of a column is in it;"
        " docs/multi-site.md says what means and covariances can tell of rows."
    )
    return f"{lined_up(lines, left=(0, 1))}\n\n{ending}"


def of_posterior(file: Path, posterior: "Posterior") -> str:
    """A posterior."""
    product = posterior.choices.product
    lines = [
        ("file", f"{file}, {size_of(file)}, a posterior"),
        ("stands for", posterior.stands_for),
        ("status", posterior.status.text),
        *_rounds(posterior),
        ("product", f"{'by size' if product is None else repr(product)}, with seed {said_seed(posterior.choices.key)}"),
        *(line for line in made_of_lines(posterior.fits[0].made_of) if line[0] != "rows"),
        ("parameters", ""),
        *parameter_lines(posterior.space),
        ("shards", "each shard's own file is in it (epvi show on that file prints it)"),
    ]
    for fit in posterior.fits:
        lines.append(("", f"{fit.label}: {fit.num_rows:,} rows, {fit.prior} of the prior. {fit.status}"))
    return f"{lined_up(lines, left=(0, 1))}\n\n{posterior.summary()}"


def _rounds(posterior: "Posterior") -> list[tuple[str, str]]:
    """What the rounds after the first have put into it."""
    lines = []
    found, step = posterior.certificate, posterior.step
    if found is not None:
        lines = [("certificate", line) for line in str(found).splitlines()]
        lines.append(("", f"of {found.num_draws:,} draws with their weights, which are in it too"))
        chances = [f"{fit.label} {p:.2g}" for fit, p in zip(_with_rows(posterior), found.conflict, strict=True)]
        lines.append(("", f"chances of the shards' agreement: {', '.join(chances)}"))
        if found.doubt:
            lines.append(("", f"the scores are known to {found.doubt:.2g} nats"))
    if step is not None:
        lines.append(
            ("refinement", f"{counted(step.rounds, 'step')}, {step.gained:.4g} nats gained, step size {step.rate:g}")
        )
        if step.before is not None:
            lines.append(("", "the last step is not confirmed yet, and what was before it is in it too"))
    if posterior.traffic:
        lines.append(("exchanged", f"{posterior.traffic:,} numbers in these rounds"))
    return lines


def _with_rows(posterior: "Posterior") -> "list[ShardFit]":
    return [fit for fit in posterior.fits if not fit.is_stand_in]


def of_stats(file: Path, stats: "Stats") -> str:
    """Statistics of columns."""
    rows = [["", "values", "missing", "mean", "sd", "rounded off the mean"]]
    for name, column in stats.columns.items():
        numbers = f"{column.mean:.10g}", f"{column.sd:.10g}", f"{column.rest:.1e}"
        rows.append([name, f"{column.count:,}", f"{column.missing:,}", *numbers])
    return f"{shown(file)}, {size_of(file)}, statistics of columns\n\n{lined_up(rows)}\n\nThat is all that is in it."


def numbers(mixture: "GaussianMixture", space: "Space") -> dict[str, Any]:
    """The mixture's numbers by name, for JSON."""
    return {
        "structure": _family(mixture),
        "coordinates": [space.coordinate(i) for i in range(space.dim)],
        "weights": np.asarray(mixture.weights).tolist(),
        "means": np.asarray(mixture.means).tolist(),
        "covariances": np.asarray(mixture.covariances()).tolist(),
    }


def made_of_lines(made: "Provenance") -> list[tuple[str, str]]:
    """What something was made of."""
    lines = [("model", f"{made.model}, recognised by what it computes at fixed points and made-up rows:")]
    lines.append(("", f"log prior, and then its slopes, {said_numbers(made.prior_values)}"))
    lines.append(("", f"log likelihood {said_numbers(made.row_values)}"))
    lines += [("fixed argument", f"{name}, hash {digest}") for name, digest in made.fixed.items()]
    for name, sources in made.columns.items():
        lines.append((f"argument {name}", f"made of {', '.join(sources)}"))
    for name, (centre, scale) in made.standardised.items():
        lines.append((f"column {name}", f"standardised by centre {centre:g} and scale {scale:g}"))
    for name, levels in made.levels.items():
        lines.append((f"column {name}", f"has the levels {', '.join(levels)}"))
    lines.append(("rows", f"keyed hash {made.rows}" if made.rows else "no hash"))
    if made.inference:
        settings = ", ".join(f"{name}={value}" for name, value in made.inference.items() if name != "name")
        lines.append(("inference", f"{made.inference.get('name', 'unknown')}({settings})"))
    if made.key:
        lines.append(("seed", said_seed(made.key)))
    return [*lines, ("written by", f"epvi {made.version}")]


def _number(value: Any) -> str:
    return "unknown" if np.isnan(value) else f"{float(value):.4f}"


def said_seed(key: tuple[int, ...]) -> str:
    """A seed, or the words of its key."""
    return str(key[1]) if len(key) == 2 and key[0] == 0 else f"key {list(key)}"


def said_numbers(values: Sequence[float], digits: int = 6) -> str:
    """Numbers in a row."""
    return ", ".join("unknown" if value != value else f"{value:.{digits}g}" for value in values) or "none"


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


def _family(mixture: "GaussianMixture") -> str:
    return mixture.structure.name


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
            f"  correlations of {names[i]} with those before it: {said_numbers(tuple(correlations[i, :i]), 3)}",
        )
        for i in range(1, d)
    ]
