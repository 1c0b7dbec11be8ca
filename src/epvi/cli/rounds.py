"""What the verbs of later rounds share: the centre's draws go out to the sites, the sites' scores come back."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from epvi.cli import options
from epvi.cli.writing import check_kind
from epvi.ground.printable import shown

if TYPE_CHECKING:
    from epvi.wire.answer import Scores
    from epvi.wire.request import Draws

posterior = click.argument("posterior", metavar="POSTERIOR", type=options.PATH)
accept_missing = click.option(
    "--accept-missing",
    is_flag=True,
    help="Accept that shards are missing, and judge the posterior of the rows that it has.",
)


def draws(text: str, default: str = "") -> options.Decorator:
    """The file to write draws to; refused before any work is done when it cannot be written."""

    def check(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
        return path if path is None else check_kind(path, "draws")

    return click.option("--draws", type=options.PATH, show_default=default or None, callback=check, help=text)


def load_scores(files: tuple[Path, ...]) -> "list[Scores]":
    """What the sites answered."""
    from epvi.files import load_only
    from epvi.wire.answer import Scores

    return [load_only(file, Scores) for file in files]


def at_every_site(path: Path, asked: "Draws") -> str:
    """The command by which a site scores the draws in a file, for the last of the shards."""
    share = asked.shares[-1]
    shard = f"{share.shard}/{share.num_shards}"
    return f"At every site: epvi score MODEL {shown(path)} --rows ROWS --shard {shard}    (for its own shard)"
