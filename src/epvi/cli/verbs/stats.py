"""`epvi stats`: a site's counts, means and sds of columns, before anybody fits."""

from pathlib import Path

import click

from epvi.cli import options
from epvi.cli.option_values import RowOptions
from epvi.cli.output import Verb, busy, give, size_of
from epvi.ground.printable import shown


@click.command(cls=Verb)
@click.argument("study", required=False, metavar="[STUDY.TOML]", type=click.Path(readable=False))
@options.rows
@click.option(
    "--min-rows", default=10, show_default=True, type=click.IntRange(2), help="Refuse columns with fewer values."
)
@options.output("stats")
def stats(study: str | None, rows: RowOptions, min_rows: int, output: Path) -> None:
    """Write counts, means and sds of a site's columns of numbers, and nothing else.

    The centre pools them (epvi pool) into constants with which all sites standardise.

    \b
    Examples:
      epvi stats study.toml --rows site3.csv -o site-3.stats.epvi
      epvi stats --rows site3.csv --x age,chol --min-rows 20 -o site-3.stats.epvi
    """
    from epvi.cli.describe.column_stats import stats_text
    from epvi.files import save_stats

    with busy("reading"):
        if study is not None:
            from epvi.study.study import load_study

            options.refuse_settled(study)
            found = load_study(study).stats(rows.source)
        else:
            from epvi.site.rows.column_stats import column_stats

            found = column_stats(rows.as_rows(), min_rows=min_rows)
    path = save_stats(output, found)
    words = f"{stats_text(path, found)}\nWrote {shown(path)} ({size_of(path)})."
    give({"columns": found.as_json(), "file": str(path)}, words)
