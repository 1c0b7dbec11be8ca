"""The verb of a site in the rounds after the first: `score`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from epvi.cli import options
from epvi.cli.output import Verb, busy, counted, give, size_of
from epvi.cli.writing import check_kind
from epvi.ground.printable import shown

if TYPE_CHECKING:
    from epvi.wire.answer import Scores
    from epvi.wire.request import Draws


@click.command(cls=Verb)
@options.model
@click.argument("draws", metavar="DRAWS", type=options.PATH)
@options.rows
@click.option("--shard", "which", required=True, metavar="3/6", help="The third of six; of a study, also its name.")
@click.option("--exact", is_flag=True, help="Score every row of a tall table, which takes longer.")
@options.allow_module
@options.fixed
@options.output("scores", required=False, default="scores-3-of-6.epvi")
@options.as_json
@click.pass_context
def score(context: click.Context, model: str, draws: Path, **said: Any) -> None:
    """Answer the centre's DRAWS at a site: how well each explains the rows that the shard was fitted to.

    MODEL and the options of rows are those that epvi shard was given: file.py:function, module:function, a ready model,
    or study.toml, which says all but the rows.

    \b
    Examples:
      epvi score model.py:logistic draws.epvi --rows site3.csv --x age,chol --y num --shard 3/6
      epvi score study.toml draws.epvi --rows site3.csv --shard 3/6 -o scores-3.epvi

    Nothing but the file leaves the site: epvi show scores-3-of-6.epvi prints all that is in it.
    """
    from_study = options.is_study(context, model)
    from epvi.files import load_only
    from epvi.wire.request import Draws

    asked = load_only(draws, Draws)
    made = _from_study(model, asked, said) if from_study else _from_options(model, asked, said)
    path = made.save(said["output"] or _named_after(made.shard, made.num_shards))
    how = "with every row" if made.exact else f"known to {float(max(made.errors)):.2g} nats or better"
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
    give(said["as_json"], data, words)


def _named_after(shard: int, num_shards: int) -> Path:
    """The file of scores whose name was not said."""
    return Path(f"scores-{shard}-of-{num_shards}.epvi")


def _check_default(said: dict[str, Any], number: str) -> None:
    if said["output"] is None:
        from epvi.site.tasks.fit_shard import parse_shard

        check_kind(_named_after(*parse_shard(number)), "scores")


def _from_study(path: str, draws: "Draws", said: dict[str, Any]) -> "Scores":
    source = options.make_source(said)
    from epvi.study.study import load_study

    study = load_study(path, allow_module=said["allow_module"])
    _check_default(said, study.shard(said["which"])[0])
    with busy(f"scoring draws with shard {said['which']} of {study.name}"):
        return study.score(source, said["which"], draws, exact=said["exact"])


def _from_options(model: str, draws: "Draws", said: dict[str, Any]) -> "Scores":
    # Constants are those of the fits: a site cannot have others.
    rows = options.make_rows(said, draws.made_of.standardised)
    _check_default(said, said["which"])
    from epvi.site.tasks.score import score as score_draws
    from epvi.study.references import model_named

    named = model_named(model, options.make_fixed(said["fixed"]))
    with busy(f"scoring draws with shard {said['which']}"):
        return score_draws(named, rows, draws, said["which"], exact=said["exact"])
