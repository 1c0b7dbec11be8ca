"""Verbs that settle units before anybody fits: `stats` at a site, `pool` at the centre."""

from pathlib import Path
from typing import Any

import click

from epvi.cli import options
from epvi.cli.output import Verb, busy, give, size_of
from epvi.errors import EpviError


@click.command(cls=Verb)
@click.argument("study", required=False, metavar="[STUDY.TOML]", type=click.Path(readable=False))
@options.rows
@click.option(
    "--min-rows", default=10, show_default=True, type=click.IntRange(2), help="Refuse columns with fewer values."
)
@options.output("stats")
@options.as_json
@click.pass_context
def stats(context: click.Context, study: str | None, **said: Any) -> None:
    """Write counts, means and sds of a site's columns of numbers, and nothing else.

    The centre pools them (epvi pool) into constants with which all sites standardise.

    \b
    Examples:
      epvi stats study.toml --rows site3.csv -o site-3.stats.epvi
      epvi stats --rows site3.csv --x age,chol --min-rows 20 -o site-3.stats.epvi
    """
    from epvi.cli import contents
    from epvi.files import save_stats

    with busy("reading"):
        if study is not None:
            from epvi.study import load_study

            options.refuse_settled(context, study)
            found = load_study(study).stats(options.make_source(said))
        else:
            from epvi.site.stats import column_stats

            found = column_stats(options.make_rows(said), min_rows=said["min_rows"])
    path = save_stats(said["output"], found)
    words = f"{contents.of_stats(path, found)}\nWrote {path} ({size_of(path)})."
    give(said["as_json"], {"columns": found.as_json(), "file": str(path)}, words)


@click.command(cls=Verb)
@click.argument("files", nargs=-1, required=True, type=options.PATH)
@options.as_json
def pool(files: tuple[Path, ...], as_json: bool) -> None:
    """Pool the sites' statistics into the constants that all standardise with, as lines for study.toml.

    \b
    Example:
      epvi pool site-*.stats.epvi >> study.toml
    """
    from epvi.columnstats import Stats
    from epvi.columnstats import pool as pool_stats
    from epvi.files import load_any

    found: dict[Path, Stats] = {}
    for path in files:
        one = load_any(path)
        if not isinstance(one, Stats):
            raise EpviError(f"{path} does not hold statistics of columns: pass what epvi stats wrote.")
        for other, held in found.items():
            if held == one:
                raise EpviError(f"{other} and {path} hold the same statistics, which would count twice: leave one out.")
        found[path] = one
    pooled = pool_stats(list(found.values()))
    lines = []
    for name, (centre, scale) in pooled.constants().items():
        lines.append(f"[columns.{_key(name)}]\ncentre = {centre!r}\nscale = {scale!r}\n")
    data = {"columns": pooled.as_json(), "constants": {n: list(c) for n, c in pooled.constants().items()}}
    give(as_json, data, "\n".join(lines))


def _key(name: str) -> str:
    """A column's name as a TOML key."""
    import json

    bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if bare else json.dumps(name)
