"""`epvi shard`: fit one site's shard, and write the file that it sends."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from epvi.cli import options
from epvi.cli.option_values import InferenceOptions, ModelOptions, RowOptions
from epvi.cli.output import Verb, about_fit, busy, counted, give, size_of
from epvi.cli.writing import check_unnamed, unnamed
from epvi.ground.printable import shown

if TYPE_CHECKING:
    from epvi.wire.shard_fit import ShardFit

_INFERENCE = tuple(field.name for field in dataclasses.fields(InferenceOptions))


@dataclasses.dataclass(frozen=True)
class PartOptions:
    """Which shard it is, its share of the prior, and whether it stands in for a site without rows."""

    which: str
    prior: str | None
    no_rows: bool


@click.command(cls=Verb)
@options.model_or_study
@options.rows
@options.gathered(
    "part",
    PartOptions,
    options.which_shard,
    click.option(
        "--prior", metavar="2/6", show_default="1/6 for shard 3/6, or the study's", help="Its share of the prior."
    ),
    click.option("--no-rows", is_flag=True, help="Stand in for a missing site: a Gaussian for its share of the prior."),
)
@options.inference
@options.seed
@options.output("shard", required=False, default="shard-3-of-6.epvi for shard 3/6")
def shard(
    model: ModelOptions,
    rows: RowOptions,
    part: PartOptions,
    inference: InferenceOptions,
    seed: int,
    output: Path | None,
) -> None:
    """Fit one site's shard and write the file that it sends.

    MODEL is file.py:function, module:function, a ready model (logistic, multinomial, poisson, robust_linear, tlsa), or
    study.toml, which says all but the rows. A model file is a program: read it before you run it. The path and the hash
    of a study's model file are printed before it runs.

    \b
    Examples:
      epvi shard model.py:logistic --rows site3.csv --x age,chol --y num --shard 3/6 -o site-3.epvi
      epvi shard study.toml --rows site3.csv --shard 3/6             (writes shard-3-of-6.epvi)
      epvi shard study.toml --rows site1.csv --shard 1/6 --prior 2/6 -o site-1.epvi    (with a missing site's share)
      epvi shard study.toml --no-rows --shard 3/6 -o site-3.epvi                        (until site 3's rows come)

    Nothing but the file leaves the site: epvi show site-3.epvi prints all that is in it.
    """
    options.refuse_unheeded(model, *_INFERENCE, "seed")
    if model.is_study:
        made = _from_study(model, rows, part, output)
    else:
        made = _from_options(model, rows, part, inference, seed, output)
    path = made.save(output or unnamed("shard", made.shard, made.num_shards))
    words = (
        f"Shard {made.label}: {counted(made.num_rows, 'row')}, {made.prior} of the prior. {made.status}\n"
        f"Wrote {shown(path)} ({size_of(path)}); epvi show {shown(path)} prints all that is in it."
    )
    if not made.can_be_multiplied:
        words += f"\nepvi combine refuses {shown(path)} as it is, unless told --accept-unconverged."
    give({**about_fit(made), "file": str(path)}, words)


def _from_study(model: ModelOptions, rows: RowOptions, part: PartOptions, output: Path | None) -> "ShardFit":
    if part.no_rows == bool(rows.files):
        raise click.UsageError("Give either --rows FILE or --no-rows.")
    study = model.as_study()
    number, _, _ = study.shard(part.which)
    if output is None:
        check_unnamed("shard", number)
    with busy(f"fitting shard {part.which} of {study.name}"):
        if part.no_rows:
            return study.stand_in(part.which, part.prior)
        return study.fit(rows.source, part.which, part.prior)


def _from_options(
    model: ModelOptions,
    rows: RowOptions,
    part: PartOptions,
    inference: InferenceOptions,
    seed: int,
    output: Path | None,
) -> "ShardFit":
    if part.no_rows and not rows.files:
        raise click.UsageError(
            "Without a study, --no-rows needs --rows FILE with any few rows, for their columns only."
        )
    if part.no_rows:
        options.refuse_given(*_INFERENCE, why="--no-rows makes one Gaussian")
    described = rows.as_rows()
    if output is None:
        check_unnamed("shard", part.which)
    from epvi.site.tasks.fit_shard import fit_shard
    from epvi.site.tasks.stand_in import stand_in

    named = model.as_model()
    with busy(f"fitting shard {part.which}"):
        if part.no_rows:
            return stand_in(named, described, part.which, prior=part.prior, seed=seed)
        how = inference.as_inference()
        return fit_shard(named, described, part.which, prior=part.prior, inference=how, seed=seed)
