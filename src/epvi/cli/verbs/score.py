"""`epvi score`: a site's answer to the centre's draws, in the rounds after the first."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from epvi.cli import options
from epvi.cli.option_values import ModelOptions, RowOptions
from epvi.cli.output import Verb, busy, counted, give, size_of
from epvi.cli.writing import check_unnamed, unnamed
from epvi.ground.printable import shown

if TYPE_CHECKING:
    from epvi.wire.answer import Scores
    from epvi.wire.request import Draws


@click.command(cls=Verb)
@options.model_or_study
@click.argument("draws", metavar="DRAWS", type=options.PATH)
@options.rows
@options.which_shard
@click.option(
    "--exact",
    is_flag=True,
    help="Score every row; otherwise 32,768 rows and more are scored by a part of them, with standard errors.",
)
@options.output("scores", required=False, default="scores-3-of-6.epvi for shard 3/6")
def score(model: ModelOptions, draws: Path, rows: RowOptions, which: str, exact: bool, output: Path | None) -> None:
    """Score the centre's DRAWS with a site's rows, and write the file that it sends.

    The score of a draw is the log likelihood of the rows that the shard was fitted to, plus its share of the log prior.
    The file also has gradients and Hessians at the posterior's modes, and averages of both around them if the draws ask
    for moments. Give MODEL and the rows as to epvi shard: file.py:function, module:function, a ready model, or
    study.toml, which says all but the rows.

    \b
    Examples:
      epvi score model.py:logistic draws.epvi --rows site3.csv --x age,chol --y num --shard 3/6
      epvi score study.toml draws.epvi --rows site3.csv --shard 3/6 -o scores-3.epvi

    Nothing but the file leaves the site: epvi show scores-3-of-6.epvi prints all that is in it.
    """
    options.refuse_unheeded(model)
    from epvi.files import load_only
    from epvi.wire.request import Draws

    asked = load_only(draws, Draws)
    from_where = _from_study if model.is_study else _from_options
    made = from_where(model, rows, asked, which, exact, output)
    path = made.save(output or unnamed("scores", made.shard, made.num_shards))
    how = "with every row" if made.exact else f"with standard errors of at most {float(max(made.errors)):.2g} nats"
    words = (
        f"Shard {made.label}: {counted(len(made.values), 'draw')} scored on {counted(made.num_rows, 'row')}, {how}.\n"
        f"Wrote {shown(path)} ({size_of(path)}); epvi show {shown(path)} prints all that is in it."
        " Send it to the centre."
    )
    data = {
        "file": str(path),
        "shard": made.shard,
        "num_shards": made.num_shards,
        "label": made.label,
        "prior": str(made.prior),
        "num_rows": made.num_rows,
        "num_draws": len(made.values),
        "moments": made.moments is not None,
        "exact": made.exact,
        "passes": made.passes,
        "seconds": made.seconds,
    }
    give(data, words)


def _from_study(
    model: ModelOptions, rows: RowOptions, draws: "Draws", which: str, exact: bool, output: Path | None
) -> "Scores":
    source, study = rows.source, model.as_study()
    number, _, _ = study.shard(which)
    if output is None:
        check_unnamed("scores", number)
    with busy(f"scoring draws with shard {which} of {study.name}"):
        return study.score(source, which, draws, exact=exact)


def _from_options(
    model: ModelOptions, rows: RowOptions, draws: "Draws", which: str, exact: bool, output: Path | None
) -> "Scores":
    # Constants are those of the fits: a site cannot have others.
    described = rows.as_rows(draws.made_of.standardised)
    if output is None:
        check_unnamed("scores", which)
    from epvi.site.tasks.score import score as score_draws

    named = model.as_model()
    with busy(f"scoring draws with shard {which}"):
        return score_draws(named, described, draws, which, exact=exact)
