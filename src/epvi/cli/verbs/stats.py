"""`epvi stats`: counts, means and sds of a site's columns, before anybody fits."""

from pathlib import Path

import click

from epvi.cli import options
from epvi.cli.option_values import RowOptions
from epvi.cli.output import Verb, busy, give, size_of
from epvi.ground.printable import shown

# Values that a column needs to be told of, the default of `column_stats`: a mean of fewer tells of single rows.
_MIN_ROWS = 10


@click.command(cls=Verb)
@click.argument("study", required=False, metavar="[STUDY.TOML]", type=click.Path(readable=False))
@options.rows
@click.option(
    "--min-rows",
    default=_MIN_ROWS,
    show_default=True,
    type=click.IntRange(2),
    help="Refuse columns with fewer values than this.",
)
@options.output("stats")
def stats(study: str | None, rows: RowOptions, min_rows: int, output: Path) -> None:
    """Write counts, means and sds of a site's columns of numbers, and nothing else.

    Missing values are counted too. The centre pools all sites' statistics (epvi pool) into the constants that all
    standardise with. With a study, the columns and --min-rows are the study's.

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
