"""`epvi shard`: fit one site's shard, and write the file that it sends."""

from pathlib import Path
from typing import Any

import click

from epvi.cli import options
from epvi.cli.output import Verb, about_fit, busy, counted, give, size_of
from epvi.cli.writing import check_kind
from epvi.ground.printable import shown


@click.command(cls=Verb)
@options.model
@options.rows
@click.option("--shard", "which", required=True, metavar="3/6", help="The third of six; of a study, also its name.")
@click.option("--prior", metavar="2/8", help="Its share of the prior, when not one of the number of shards.")
@click.option("--no-rows", is_flag=True, help="Stand in for a missing site: its share of the prior only.")
@options.allow_module
@options.fixed
@options.inference
@options.seed
@options.output("shard", required=False, default="shard-3-of-6.epvi")
@options.as_json
@click.pass_context
def shard(context: click.Context, model: str, **said: Any) -> None:
    """Fit one site's shard and write the file that it sends.

    MODEL is file.py:function, module:function, a ready model, or study.toml: a study says all but the rows. A model
    file is a program: read one that was sent to you. That of a study is named, with its hash, before it runs.

    \b
    Examples:
      epvi shard model.py:logistic --rows site3.csv --x age,chol --y num --shard 3/6 -o site-3.epvi
      epvi shard study.toml --rows site3.csv --shard 3/6             (writes shard-3-of-6.epvi)
      epvi shard study.toml --rows site1.csv --shard 1/6 --prior 2/6 -o site-1.epvi    (carries a missing site's share)
      epvi shard study.toml --no-rows --shard 3/6 -o site-3.epvi                        (until site 3's rows come)

    Nothing but the file leaves the site: epvi show site-3.epvi prints all that is in it.
    """
    settled = ("components", "covariance", "no_merge", "max_sweeps", "seed")
    from_study = options.is_study(context, model, *settled)
    made = _from_study(model, said) if from_study else _from_options(context, model, said)
    path = made.save(said["output"] or _named_after(made.shard, made.num_shards))
    rows = counted(made.num_rows, "row")
    words = (
        f"Shard {made.label}: {rows}, {made.prior} of the prior. {made.status}\n"
        f"Wrote {shown(path)} ({size_of(path)}); epvi show {shown(path)} prints all that is in it."
    )
    if not made.status.ok:
        words += f"\nepvi combine will refuse {shown(path)} as it is."
    give(said["as_json"], {**about_fit(made), "file": str(path)}, words)


def _named_after(shard: int, num_shards: int) -> Path:
    """The file of a shard whose name was not said."""
    return Path(f"shard-{shard}-of-{num_shards}.epvi")


def _check_default(said: dict[str, Any], number: str) -> None:
    """Refuse before the work to replace something else by a file whose name was not said."""
    if said["output"] is None:
        from epvi.site.tasks.fit_shard import parse_shard

        check_kind(_named_after(*parse_shard(number)), "shard")


def _from_study(path: str, said: dict[str, Any]) -> Any:
    if said["no_rows"] == bool(said["rows"]):
        raise click.UsageError("Give either --rows FILE or --no-rows.")
    from epvi.study.study import load_study

    study = load_study(path, allow_module=said["allow_module"])
    _check_default(said, study.shard(said["which"])[0])
    with busy(f"fitting shard {said['which']} of {study.name}"):
        if said["no_rows"]:
            return study.stand_in(said["which"], said["prior"])
        return study.fit(options.make_source(said), said["which"], said["prior"])


def _from_options(context: click.Context, model: str, said: dict[str, Any]) -> Any:
    if said["no_rows"] and not said["rows"]:
        raise click.UsageError(
            "Without a study, --no-rows needs --rows FILE with any few rows, for their columns only."
        )
    if said["no_rows"]:
        options.refuse_given(
            context, "components", "covariance", "no_merge", "max_sweeps", why="--no-rows makes one Gaussian"
        )
    rows = options.make_rows(said)
    _check_default(said, said["which"])
    from epvi.site.tasks.fit_shard import fit_shard
    from epvi.site.tasks.stand_in import stand_in
    from epvi.study.references import model_named

    named = model_named(model, options.make_fixed(said["fixed"]))
    with busy(f"fitting shard {said['which']}"):
        if said["no_rows"]:
            return stand_in(named, rows, said["which"], prior=said["prior"], seed=said["seed"])
        return fit_shard(
            named,
            rows,
            said["which"],
            prior=said["prior"],
            inference=options.make_inference(said),
            seed=said["seed"],
        )
