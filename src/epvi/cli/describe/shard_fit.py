"""A shard's fit, in words: nothing that is written is left unsaid."""

from pathlib import Path
from typing import TYPE_CHECKING

from epvi.cli.describe.mixture import component_lines, parameter_lines, structure_name
from epvi.cli.describe.numerals import number_text
from epvi.cli.describe.provenance import provenance_lines
from epvi.cli.output import size_of
from epvi.ground.text_table import lined_up
from epvi.wire.codec import mixture_arrays

if TYPE_CHECKING:
    from epvi.wire.shard_fit import ShardFit


def fit_text(file: Path, fit: "ShardFit") -> str:
    """A shard's fit."""
    made = fit.made_of
    rows = "no rows (it stands in for a missing site)" if fit.is_stand_in else f"{fit.num_rows:,} rows"
    bound = f"{number_text(fit.elbo.value)} ± {number_text(fit.elbo.standard_error)} nats"
    count = sum(array.size for array in mixture_arrays(fit.mixture).values())
    lines = [
        ("file", f"{file}, {size_of(file)}, a shard's fit"),
        ("study", made.study or "none"),
        ("shard", fit.label),
        ("stands for", f"{rows}, and {fit.prior} of the prior"),
        ("status", fit.status.text),
        (
            "bound",
            f"{bound}, {number_text(round(fit.gap, 9) + 0)} nats below the evidence as far as its own draws tell",
        ),
        ("bound by sweep", ", ".join(map(number_text, fit.history)) or "none"),
        ("effort", f"{fit.passes} passes over all rows in {fit.pass_seconds:g} s, all in all {fit.seconds:g} s"),
        *provenance_lines(made),
        ("parameters", ""),
        *parameter_lines(fit.space),
        (
            "mixture",
            f"{fit.mixture.num_components} x {structure_name(fit.mixture)} Gaussian over unconstrained parameters",
        ),
        *component_lines(fit.mixture, fit.space),
    ]
    ending = (
        f"That is all: {count:,} numbers of the mixture, and the text above. No row and no value of a column is in it;"
        " docs/multi-site.md says what means and covariances can tell of rows."
    )
    return f"{lined_up(lines, left=(0, 1))}\n\n{ending}"
