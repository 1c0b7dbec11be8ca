"""The group of all verbs: it imports a verb when it is called, and turns a refusal into a sentence and an exit code."""

import difflib
import importlib
import os
import sys
from typing import Any

import click

from epvi.cli.log import verbose
from epvi.cli.output import json_line
from epvi.engines.compile_cache import cache_environment
from epvi.ground.errors import EpviError
from epvi.ground.printable import shown, shown_lines
from epvi.ground.version import __version__

# Where in a context's `meta` it says whether the user wants JSON, which refusals of wrong usage need to know.
_AS_JSON = "epvi.json"
# The exit code of shells for a process that Ctrl-C ended: 128 and the number of SIGINT.
INTERRUPTED = 130
# Columns of a terminal that help texts may fill: wide enough for the commands in them, narrow enough to read.
_WIDTH = 100

# Each verb, which is in the file of its name, and what `epvi --help` says of it.
_VERBS = {
    "demo": "Simulate six sites, fit each on its own and combine the fits.",
    "fit": "Fit a model to rows in one place: shards in parallel, on all cores.",
    "shard": "Fit one site's shard and write the file that it sends.",
    "show": "Print what is in a file, before it is sent.",
    "combine": "Multiply the shards' fits into the posterior of all rows.",
    "certify": "Say whether a posterior can be trusted, by importance weights.",
    "score": "Score the centre's draws with a site's rows; write the file that it sends.",
    "refine": "Improve a posterior by the sites' scores, a step per round.",
    "summary": "Print means, sds and quantiles of the parameters.",
    "predict": "Draw predictions for rows, and score those whose outcome is known.",
    "stats": "Write counts, means and sds of a site's columns of numbers.",
    "pool": "Pool the sites' statistics into constants to standardise with.",
    "completion": "Print the script that makes the Tab key complete.",
}


class _Verbs(click.Group):
    """Imports a verb when it is called, and turns refusals into a sentence and an exit code."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params.append(verbose())

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        if "jax" not in sys.modules:
            # What this process compiles is kept too, as the workers' is.
            os.environ.update(cache_environment())
        return getattr(importlib.import_module(f"epvi.cli.verbs.{cmd_name}"), cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(_VERBS.items()))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in _VERBS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], _VERBS, 1)
            raise click.UsageError(f"There is no verb {args[0]!r}" + (f": did you mean {near[0]!r}?" if near else "."))
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_AS_JSON] = "--json" in args
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except EpviError as error:
            _refuse(ctx, str(error))
        except click.ClickException as error:
            # Click prints how the verb is used, and exits with 2.
            _give_error(ctx, error.format_message())
            raise _printable(error) from None
        except (KeyboardInterrupt, click.Abort):
            # Click turns the one into the other where a verb runs another.
            click.echo(
                "epvi: interrupted. Every file is whole or not there; with --work, run it again to go on.", err=True
            )
            sys.exit(INTERRUPTED)
        except BrokenPipeError:
            raise
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            _refuse(ctx, f"{where}{error.strerror or error}.")
        except MemoryError:
            _refuse(ctx, "there is not enough memory: take more shards, fewer workers, or fewer draws.")


def _refuse(ctx: click.Context, sentence: str) -> None:
    _give_error(ctx, sentence)
    click.echo(f"epvi: {shown(sentence)}", err=True)
    sys.exit(1)


def _printable(error: click.ClickException) -> click.ClickException:
    """The same refusal, where it names something that the terminal would obey: a file can be named like an option."""
    sentence = shown_lines(error.format_message())
    if sentence == error.format_message():
        return error
    return click.UsageError(sentence, error.ctx if isinstance(error, click.UsageError) else None)


def _give_error(ctx: click.Context, sentence: str) -> None:
    if ctx.meta[_AS_JSON]:
        click.echo(json_line({"error": sentence}))


@click.group(
    cls=_Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": _WIDTH},
    subcommand_metavar="VERB [ARGS]...",
)
@click.version_option(__version__, prog_name="epvi")
def main() -> None:
    """One posterior from data that never meets.

    Every site fits its own rows and sends one small file; the centre multiplies the fits into the posterior of all
    the data.

    \b
      epvi shard   model.py:logistic --rows site3.csv --x age,chol --y num --shard 3/6 -o site-3.epvi
      epvi show    site-3.epvi
      epvi combine site-*.epvi -o posterior.epvi --check
      epvi summary posterior.epvi

    Can the posterior be trusted? The sites score draws of it, which gives importance weights:

    \b
      epvi certify posterior.epvi --draws draws.epvi
      epvi score   model.py:logistic draws.epvi --rows site3.csv --x age,chol --y num --shard 3/6
      epvi certify posterior.epvi scores-*.epvi -o posterior.epvi

    With all rows in one place:

    \b
      epvi fit model.py:logistic --rows all.parquet --x age,chol --y num --shards 8 -o posterior.epvi

    Exit codes: 0 done, 1 refused with a reason, 2 wrong usage, 3 do not trust (certify --strict), 130 interrupted.
    """
