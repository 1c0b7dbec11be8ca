"""What verbs print: a JSON object or words on stdout; the spinner, and what models print, on stderr."""

import contextlib
import dataclasses
import io
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from epvi.cli.log import logged, verbose, verbosity
from epvi.ground.printable import shown, shown_lines

if TYPE_CHECKING:
    from epvi.hub.posterior.posterior import Posterior
    from epvi.hub.posterior.summary import Summary
    from epvi.hub.refine.step import Step
    from epvi.wire.shard_fit import ShardFit


# Bytes from which on a file's size is told in kB: below, a rounded number would hide small differences. Judgement.
_KILOBYTES_FROM = 10_000


@dataclasses.dataclass(frozen=True)
class Results:
    """Where a verb's results go, and whether as one JSON object or in words."""

    file: TextIO | io.StringIO
    as_json: bool


class Verb(click.Command):
    """A verb: it has --json and -v, and while it runs, stdout is for its results alone."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        as_json = ["--json", "as_json"]
        self.params += [click.Option(as_json, is_flag=True, help="Print one JSON object instead of words."), verbose()]

    def invoke(self, ctx: click.Context) -> Any:
        """Send what else is printed, by a user's model say, to stderr."""
        # A verb that another one runs prints where that one says.
        file = ctx.obj.file if isinstance(ctx.obj, Results) else sys.stdout
        ctx.obj = Results(file, ctx.params.pop("as_json"))
        with contextlib.redirect_stdout(sys.stderr), logged(verbosity(ctx)):
            return super().invoke(ctx)


def results() -> Results:
    """Where the results of the verb that runs go."""
    return click.get_current_context().obj


def give(data: dict[str, Any], words: str) -> None:
    """Print the data as one JSON object, or the words; the terminal obeys nothing that is in them."""
    click.echo(shown_lines(json_line(data) if results().as_json else words), file=results().file)


def json_line(data: dict[str, Any]) -> str:
    """One JSON object in a line, with escapes for what cannot be printed."""
    text = json.dumps(_plain(data), ensure_ascii=False)
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _plain(value: Any) -> Any:
    """JSON has no NaN: what is unknown is null."""
    if isinstance(value, dict):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


@contextlib.contextmanager
def busy(doing: str) -> Iterator[None]:
    """A spinner on stderr, when that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        progress.add_task(shown(doing), total=None)
        yield


def counted(number: int, what: str) -> str:
    """A number of things in words: no rows, 1 row, 2,000 rows."""
    return f"no {what}s" if number == 0 else f"{number:,} {what}{'' if number == 1 else 's'}"


def size_of(path: Path) -> str:
    """A file's size in words."""
    size = path.stat().st_size
    return f"{size:,} bytes" if size < _KILOBYTES_FROM else f"{size / 1000:,.0f} kB"


def about_fit(fit: "ShardFit") -> dict[str, Any]:
    """A fit in JSON, without its arrays."""
    from epvi.wire.shard_fit import describe_fit

    return {**describe_fit(fit), "num_components": fit.mixture.num_components, "num_parameters": fit.space.dim}


def _about_step(step: "Step | None") -> dict[str, Any] | None:
    if step is None:
        return None
    return {"rounds": step.rounds, "gained": step.gained, "confirmed": not step.waits}


def trusted(posterior: "Posterior") -> str:
    """How it went in words: the certificate, where there is one, and whether a step waits to be confirmed."""
    text = str(posterior.status if posterior.certificate is None else posterior.certificate)
    waiting = posterior.step is not None and posterior.step.waits
    return f"{text} Its last step is not confirmed yet (epvi refine)." if waiting else text


def about_posterior(posterior: "Posterior", summary: "Summary") -> dict[str, Any]:
    """A posterior in JSON: what it stands for and its summary."""
    return {
        "stands_for": posterior.stands_for,
        "num_rows": posterior.num_rows,
        "shards": [fit.label for fit in posterior.fits],
        "status": {"ok": posterior.status.ok, "text": posterior.status.text},
        "refinement": _about_step(posterior.step),
        "certificate": None if posterior.certificate is None else posterior.certificate.to_json(),
        "parameters": {name: summary[name] for name in summary.names},
    }
