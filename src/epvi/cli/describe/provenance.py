"""What a fit, draws or scores were made of, as lines of text."""

from typing import TYPE_CHECKING

from epvi.cli.describe.numerals import numbers_text, seed_text

if TYPE_CHECKING:
    from epvi.wire.request import Asked
    from epvi.wire.shard_fit import Provenance


def provenance_lines(made: "Provenance") -> list[tuple[str, str]]:
    """The model, columns, rows and settings that something was made of."""
    lines = [("model", f"{made.model}; its fingerprint is what it computes at fixed points, for made-up rows:")]
    lines.append(("", f"log prior, then its derivative along each point: {numbers_text(made.prior_values)}"))
    lines.append(("", f"log likelihood of each row: {numbers_text(made.row_values)}"))
    lines += [("fixed argument", f"{name}, hash {digest}") for name, digest in made.fixed.items()]
    if made.groups:
        lines.append(("groups", f"{made.groups}; their effects were integrated out where their rows are"))
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
        lines.append(("seed", seed_text(made.key)))
    return [*lines, ("written by", f"epvi {made.version}")]


def request_lines(asked: "Asked") -> list[tuple[str, str]]:
    """Which draws of which posterior were asked for."""
    base = f", {asked.num_base:,} base draws" if asked.num_base else ""
    text = f"{asked.num_draws:,} draws{base} with seed {seed_text(asked.key)}, of the posterior {asked.posterior}"
    return [("request", text)]
