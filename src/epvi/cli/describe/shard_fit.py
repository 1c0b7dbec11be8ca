"""A shard's fit as text: everything that is in its file."""

from pathlib import Path
from typing import TYPE_CHECKING

from epvi.cli.describe.mixture import component_lines, parameter_lines, structure_name
from epvi.cli.describe.numerals import number_text
from epvi.cli.describe.provenance import provenance_lines
from epvi.cli.output import counted, size_of
from epvi.ground.text_table import lined_up
from epvi.wire.shard_fit import fit_arrays

if TYPE_CHECKING:
    from epvi.wire.shard_fit import ShardFit


def fit_text(file: Path, fit: "ShardFit") -> str:
    """Everything that is in the file of a shard's fit."""
    made = fit.made_of
    rows = "no rows (it stands in for a missing site)" if fit.is_stand_in else f"{fit.num_rows:,} rows"
    elbo = f"{number_text(fit.elbo.value)} ± {number_text(fit.elbo.standard_error)} nats by Monte Carlo"
    # Rounded first, and without the sign of a zero.
    gap = number_text(round(fit.gap, 9) + 0)
    count = sum(array.size for array in fit_arrays(fit).values())
    gaussians = counted(fit.mixture.num_components, "Gaussian")
    lines = [
        ("file", f"{file}, {size_of(file)}, a shard's fit"),
        ("study", made.study or "none"),
        ("shard", fit.label),
        ("stands for", f"{rows}, and {fit.prior} of the prior"),
        ("status", fit.status.text),
        ("ELBO", f"{elbo}; the same draws put the log evidence {gap} nats above it"),
        ("bound by sweep", ", ".join(map(number_text, fit.history)) or "none"),
        ("cost", f"{fit.passes} passes over all rows in {fit.pass_seconds:g} s; {fit.seconds:g} s in all"),
        *provenance_lines(made),
        ("parameters", ""),
        *parameter_lines(fit.space),
        ("mixture", f"{gaussians}, {structure_name(fit.mixture)} covariance, over unconstrained parameters"),
        *component_lines(fit.mixture, fit.space),
        *_point_lines(fit),
    ]
    ending = (
        f"That is all: {count:,} numbers of the mixture, and the text above. No row and no value of a column is in it;"
        " docs/multi-site.md says what means and covariances can tell of rows."
    )
    return f"{lined_up(lines, left=(0, 1))}\n\n{ending}"


def _point_lines(fit: "ShardFit") -> list[tuple[str, str]]:
    """The point at which a fit is information, and no density."""
    if fit.point is None:
        return []
    named = ", ".join(f"{fit.space.coordinate(i)} = {value:.6g}" for i, value in enumerate(fit.point))
    return [("information", f"the mixture is no density: it has slope and curvature of the log density at {named}")]
