"""A posterior as text: what its file says of it, and its summary."""

from pathlib import Path
from typing import TYPE_CHECKING

from epvi.cli.describe.mixture import parameter_lines
from epvi.cli.describe.numerals import seed_text
from epvi.cli.describe.provenance import provenance_lines
from epvi.cli.output import counted, size_of
from epvi.ground.text_table import lined_up

if TYPE_CHECKING:
    from epvi.hub.posterior.posterior import Posterior


def posterior_text(file: Path, posterior: "Posterior") -> str:
    """What the file of a posterior says of it, and the summary."""
    first = posterior.fits[0]
    way = "chosen by size" if posterior.choices.product is None else repr(posterior.choices.product)
    lines = [
        ("file", f"{file}, {size_of(file)}, a posterior"),
        ("stands for", posterior.stands_for),
        ("status", posterior.status.text),
        *_rounds(posterior),
        ("product", f"{way}, with seed {seed_text(posterior.choices.key)}"),
        ("made of", f"what shard {first.label} says; inference, seed and version may differ in other shards"),
        *(line for line in provenance_lines(first.made_of) if line[0] != "rows"),
        ("parameters", ""),
        *parameter_lines(posterior.space),
        ("shards", "their fits are all in this file; epvi show prints a fit from the shard's own file"),
    ]
    for fit in posterior.fits:
        lines.append(("", f"{fit.label}: {fit.num_rows:,} rows, {fit.prior} of the prior. {fit.status}"))
    return f"{lined_up(lines, left=(0, 1))}\n\n{posterior.summary()}"


def _rounds(posterior: "Posterior") -> list[tuple[str, str]]:
    """What the rounds after the first found."""
    lines = []
    found, step = posterior.certificate, posterior.step
    if found is not None:
        first, *more = str(found).splitlines()
        lines = [("certificate", first), *(("", line) for line in more)]
        lines.append(("", f"the {found.num_draws:,} scored draws and their importance weights are in this file too"))
        agreed = found.agreement
        p_values = [f"{label}: {p:.2g}" for label, p in zip(agreed.shards, agreed.p, strict=True)]
        lines.append(("", f"score test of each shard against the others, p-values: {'; '.join(p_values)}"))
        if found.doubt:
            lines.append(("", f"standard error of a draw's score, by the weights: {found.doubt:.2g} nats"))
    if step is not None:
        text = f"{counted(step.rounds, 'round')}, {step.gained:.4g} nats gained, next step size {step.rate:g}"
        lines.append(("refinement", text))
        if step.waits:
            lines.append(("", "the last step is not confirmed yet; the posterior before it is in this file too"))
    if posterior.traffic:
        lines.append(("exchanged", f"{posterior.traffic:,} numbers between sites and centre in these rounds"))
    return lines
