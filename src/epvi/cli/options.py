"""Options that several verbs share, and refusals of options that would not be heeded.

A group of options reaches a verb as one small object (`gathered`), so that a verb's signature stays short and typed.
"""

import dataclasses
import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from epvi.cli.option_values import InferenceOptions, ModelOptions, ProductOptions, RowOptions
from epvi.cli.writing import CALLED, check_kind
from epvi.study.references import READY

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

# Defaults of `epvi.NVI`, which help must show without importing it: Gaussians in a shard's fit, and sweeps.
_COMPONENTS, _MAX_SWEEPS = 4, 20
# The largest seed: JAX makes a key of 32 bits.
_LARGEST_SEED = 2**32 - 1
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


class Registered(click.Choice):
    """A choice by name: one of epvi's own, or one that a plugin has registered, looked up only when it is named."""

    def __init__(self, own: list[str], registry: str) -> None:
        super().__init__(own)
        self._registry = registry

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The name, or a refusal that lists those that are known."""
        if value not in self.choices:
            module, _, name = self._registry.partition(":")
            registered = getattr(importlib.import_module(module), name).names()
            self.choices = (*self.choices, *(one for one in registered if one not in self.choices))
        return super().convert(value, param, ctx)


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
        help="Fix an argument of the model: num_classes=3, or the array in a file, places=@places.npy.",
    ),
    click.option(
        "--groups",
        metavar="NAME",
        help="The argument of groups (hospital) whose effects stay where their rows are: latents with an axis of length"
        " num_hospital are integrated out.",
    ),
)
model = gathered("model", ModelOptions, *_MODEL)
model_or_study = gathered(
    "model",
    ModelOptions,
    *_MODEL,
    click.option(
        "--allow-module", is_flag=True, help="Let study.toml name a function of an installed module, and run it."
    ),
)

_ROWS = (
    click.option(
        "--rows",
        "files",
        multiple=True,
        metavar="FILE",
        help="CSV(.gz), Parquet, .npz or .npy file, folder of Parquet files, or glob in quotes; repeat for more.",
        type=click.Path(readable=False),
    ),
    click.option("--x", metavar="A,B,C", help="Source columns of the argument x, a matrix."),
    click.option("--y", metavar="A", help="Source column of the argument y."),
    click.option(
        "--column",
        "more",
        multiple=True,
        metavar="NAME=A[,B]",
        help='Source columns of another argument; "NAME=A," makes a matrix of one. Without --x, --y and --column, every'
        " column is the argument of its name.",
    ),
    click.option("--levels", multiple=True, metavar="A=1,2,3", help="The categories of a column, in order."),
    click.option(
        "--limits",
        multiple=True,
        metavar="A=LOW:HIGH",
        help="The plausible range of a column: values outside are refused. Either end may be left out.",
    ),
    click.option("--drop-missing", is_flag=True, help="Leave out rows that lack a value of a column that is used."),
)
rows = gathered("rows", RowOptions, *_ROWS)
rows_in_one_place = gathered(
    "rows",
    RowOptions,
    *_ROWS,
    click.option(
        "--standardise",
        is_flag=True,
        help="Standardise the columns of matrices by all these rows, but no categories and no columns of two values.",
    ),
)

inference = gathered(
    "inference",
    InferenceOptions,
    click.option(
        "--components",
        default=_COMPONENTS,
        show_default=True,
        type=click.IntRange(1),
        help="At most this many Gaussians in a shard's fit.",
    ),
    click.option(
        "--covariance",
        type=Registered(["auto", "spherical", "diagonal", "full"], "epvi.gaussian.structures:STRUCTURES"),
        default="auto",
        show_default=True,
        help="The structure of their covariances; auto is full up to thousands of parameters and diagonal above.",
    ),
    click.option("--no-merge", is_flag=True, help="Keep all components with equal weights, as in the paper."),
    click.option(
        "--max-sweeps",
        default=_MAX_SWEEPS,
        show_default=True,
        type=click.IntRange(1),
        help="Stop the fit of a shard after this many sweeps.",
    ),
)
product = gathered(
    "product",
    ProductOptions,
    click.option(
        "--product",
        type=Registered(["auto", "exact", "chain", "subset", "anchored"], "epvi.hub.product.known:PRODUCTS"),
        default="auto",
        show_default=True,
        help="How the fits are multiplied; auto is exact up to 10,000 components and anchored above.",
    ),
    click.option(
        "--samples",
        type=click.IntRange(1),
        help="How many product components to sample, with chain, subset or anchored.",
    ),
)
which_shard = click.option(
    "--shard", "which", required=True, metavar="3/6", help="Which shard of how many; with a study, its name will do."
)
seed = click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(0, _LARGEST_SEED), help="Seed of the random numbers."
)


def output(kind: str, *, required: bool = True, default: str = "") -> Decorator:
    """The file to write, and what its name is by `default`.

    It is refused before any work is done when it cannot be written, or would replace something else.
    """

    def check(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
        return path if path is None else check_kind(path, kind)

    text = f"The file to write: {CALLED[kind]}."
    return click.option(
        "-o", "--output", required=required, show_default=default or None, type=PATH, callback=check, help=text
    )


# What a study says, so that options must not.
_SETTLED = ("x", "y", "more", "levels", "limits", "drop_missing", "fixed", "groups", "min_rows")


def refuse_settled(study: str, *more: str) -> None:
    """Refuse options that the study has settled."""
    refuse_given(*_SETTLED, *more, why=f"{study} settles it, or should")


def refuse_unheeded(model: ModelOptions, *more: str) -> None:
    """Refuse options that a study has settled, these among them; and without a study the option that goes with one."""
    if model.is_study:
        refuse_settled(model.reference, *more)
    else:
        refuse_given(
            "allow_module", why="it goes with a study; a model that you name yourself may be in a module anyway"
        )


def refuse_given(*names: str, why: str) -> None:
    """Refuse options that would not be heeded."""
    context = click.get_current_context()
    for param in context.command.params:
        given = context.get_parameter_source(str(param.name)) is click.core.ParameterSource.COMMANDLINE
        if given and param.name in names:
            raise click.UsageError(f"Leave {param.opts[0]} out: {why}.")
