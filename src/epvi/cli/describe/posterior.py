"""A posterior's file, in words."""

from pathlib import Path
from typing import TYPE_CHECKING

from epvi.cli.describe.mixture import parameter_lines
from epvi.cli.describe.numerals import seed_text
from epvi.cli.describe.provenance import provenance_lines
from epvi.cli.output import counted, size_of
from epvi.ground.text_table import lined_up

if TYPE_CHECKING:
    from epvi.hub.posterior.posterior import Posterior
    from epvi.wire.shard_fit import ShardFit


def posterior_text(file: Path, posterior: "Posterior") -> str:
    """A posterior."""
    product = posterior.choices.product
    lines = [
        ("file", f"{file}, {size_of(file)}, a posterior"),
        ("stands for", posterior.stands_for),
        ("status", posterior.status.text),
        *_rounds(posterior),
        ("product", f"{'by size' if product is None else repr(product)}, with seed {seed_text(posterior.choices.key)}"),
        *(line for line in provenance_lines(posterior.fits[0].made_of) if line[0] != "rows"),
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
