"""Options that several verbs share, and refusals of options that would not be heeded.

A group of options reaches a verb as one small object (`gathered`), so that a verb's signature stays short and typed.
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from epvi.cli.option_values import InferenceOptions, ModelOptions, ProductOptions, RowOptions
from epvi.cli.writing import check_kind
from epvi.study.references import READY

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

# A file that may not be read is refused where it is read, as one that is not there.
PATH = click.Path(readable=False, path_type=Path)


def gathered(name: str, kind: type, *options: Decorator) -> Decorator:
    """Options that reach a verb as one argument, an object of a dataclass that has a field for each of them."""
    fields = [field.name for field in dataclasses.fields(kind)]

    def decorate(verb: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(verb)
        def called(**given: Any) -> Any:
            made = kind(**{field: given.pop(field) for field in fields if field in given})
            return verb(**given, **{name: made})

        return functools.reduce(lambda function, option: option(function), reversed(options), called)

    return decorate


def _complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    from click.shell_completion import CompletionItem

    ready = [CompletionItem(name, help="ready model") for name in READY if name.startswith(incomplete)]
    # Files first: bash forgets what came before them, and offers them when nothing comes after.
    return [CompletionItem(incomplete, type="file"), *ready]


_MODEL = (
    click.argument("reference", metavar="MODEL", shell_complete=_complete_model),
    click.option(
        "--set",
        "fixed",
        multiple=True,
        metavar="NAME=VALUE",
        help="Fix an argument: num_classes=3, or places=@places.npy.",
    ),
)
model = gathered("model", ModelOptions, *_MODEL)
model_or_study = gathered(
    "model",
    ModelOptions,
    *_MODEL,
    click.option(
        "--allow-module", is_flag=True, help="Let study.toml name a model in an installed module, and run it."
    ),
)

_ROWS = (
    click.option(
        "--rows",
        "files",
        multiple=True,
        metavar="FILE",
        help="CSV(.gz), Parquet or a folder of it, .npz or .npy; again for more.",
        type=click.Path(readable=False),
    ),
    click.option("--x", metavar="A,B,C", help="Source columns of the argument x, as a matrix."),
    click.option("--y", metavar="A", help="Source column of the argument y."),
    click.option(
        "--column",
        "more",
        multiple=True,
        metavar="NAME=A[,B]",
        help="Source columns of another argument; NAME=A, makes a matrix of one.",
    ),
    click.option("--levels", multiple=True, metavar="A=1,2,3", help="A column's categories, in order."),
    click.option(
        "--limits", multiple=True, metavar="A=LOW:HIGH", help="A column's plausible range; either end may be left out."
    ),
    click.option("--drop-missing", is_flag=True, help="Leave out rows that lack a value."),
)
rows = gathered("rows", RowOptions, *_ROWS)
rows_in_one_place = gathered(
    "rows",
    RowOptions,
    *_ROWS,
    click.option("--standardise", is_flag=True, help="Centre and scale the columns of x, by all these rows."),
)

inference = gathered(
    "inference",
    InferenceOptions,
    click.option(
        "--components", default=4, show_default=True, type=click.IntRange(1), help="At most so many Gaussians."
    ),
    click.option(
        "--covariance",
        type=click.Choice(["auto", "spherical", "diagonal", "full"]),
        default="auto",
        show_default=True,
        help="Their family; auto is full up to 100 parameters.",
    ),
    click.option("--no-merge", is_flag=True, help="Keep all components with equal weights, as in the paper."),
    click.option(
        "--max-sweeps", default=20, show_default=True, type=click.IntRange(1), help="Stop after so many sweeps."
    ),
)
product = gathered(
    "product",
    ProductOptions,
    click.option(
        "--product",
        type=click.Choice(["auto", "exact", "chain", "subset", "anchored"]),
        default="auto",
        show_default=True,
        help="How mixtures are multiplied; auto is exact when small.",
    ),
    click.option(
        "--samples", type=click.IntRange(1), help="Product components to sample, with chain, subset and anchored."
    ),
)
which_shard = click.option(
    "--shard", "which", required=True, metavar="3/6", help="The third of six; of a study, also its name."
)
seed = click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**32 - 1), help="Seed.")


def output(kind: str, *, required: bool = True, default: str = "") -> Decorator:
    """The file to write; refused before any work is done when it cannot be written, or would replace something else."""

    def check(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
        return path if path is None else check_kind(path, kind)

    text = f"The file to write the {kind} to{f'; {default}, say, unless told' if default else ''}."
    return click.option("-o", "--output", required=required, type=PATH, callback=check, help=text)


# What a study says, so that options must not.
_SETTLED = ("x", "y", "more", "levels", "limits", "drop_missing", "fixed", "min_rows")


def refuse_settled(study: str, *more: str) -> None:
    """Refuse options that the study has settled."""
    refuse_given(*_SETTLED, *more, why=f"{study} settles it, or should")


def refuse_unheeded(model: ModelOptions, *more: str) -> None:
    """Refuse options that a study has settled, these among them; and without a study the option that goes with one."""
    if model.is_study:
        refuse_settled(model.reference, *more)
    else:
        refuse_given("allow_module", why="it goes with a study; a model that you name yourself may be a module's")


def refuse_given(*names: str, why: str) -> None:
    """Refuse options that would not be heeded."""
    context = click.get_current_context()
    for param in context.command.params:
        given = context.get_parameter_source(str(param.name)) is click.core.ParameterSource.COMMANDLINE
        if given and param.name in names:
            raise click.UsageError(f"Leave {param.opts[0]} out: {why}.")
