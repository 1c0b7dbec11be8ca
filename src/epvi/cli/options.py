"""Options that several verbs share, and what they become: rows, an inference, a product, fixed arguments."""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from epvi.cli.writing import check_kind
from epvi.study.references import READY

if TYPE_CHECKING:
    from epvi.hub.product.result import Product
    from epvi.site.fit.nvi import NVI
    from epvi.site.rows.rows import Rows

F = TypeVar("F", bound=Callable[..., Any])

# A file that may not be read is refused where it is read, as one that is not there.
PATH = click.Path(readable=False, path_type=Path)


def _complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    from click.shell_completion import CompletionItem

    ready = [CompletionItem(name, help="ready model") for name in READY if name.startswith(incomplete)]
    # Files first: bash forgets what came before them, and offers them when nothing comes after.
    return [CompletionItem(incomplete, type="file"), *ready]


as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of words.")
model = click.argument("model", metavar="MODEL", shell_complete=_complete_model)
seed = click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**32 - 1), help="Seed.")
fixed = click.option(
    "--set", "fixed", multiple=True, metavar="NAME=VALUE", help="Fix an argument: num_classes=3, or places=@places.npy."
)

allow_module = click.option(
    "--allow-module", is_flag=True, help="Let study.toml name a model in an installed module, and run it."
)


def output(kind: str, *, required: bool = True, default: str = "") -> Callable[[F], F]:
    """The file to write; refused before any work is done when it cannot be written, or would replace something else."""

    def check(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
        return path if path is None else check_kind(path, kind)

    said = f"The file to write the {kind} to{f'; {default}, say, unless told' if default else ''}."
    return click.option("-o", "--output", required=required, type=PATH, callback=check, help=said)


def refuse_settled(context: click.Context, study: str, *more: str) -> None:
    """Refuse options that the study has settled."""
    refuse_given(context, *_SETTLED, *more, why=f"{study} settles it, or should")


def is_study(context: click.Context, model: str, *more: str) -> bool:
    """Whether MODEL is a study; options that would not be heeded then, or otherwise, are refused."""
    if model.endswith(".toml"):
        refuse_settled(context, model, *more)
        return True
    refuse_given(context, "allow_module", why="it goes with a study; a model that you name yourself may be a module's")
    return False


def refuse_given(context: click.Context, *names: str, why: str) -> None:
    """Refuse options that would not be heeded."""
    for param in context.command.params:
        given = context.get_parameter_source(str(param.name)) is click.core.ParameterSource.COMMANDLINE
        if given and param.name in names:
            raise click.UsageError(f"Leave {param.opts[0]} out: {why}.")


_SETTLED = ("x", "y", "more", "levels", "limits", "drop_missing", "fixed", "min_rows")


def _together(*options: Callable[[F], F]) -> Callable[[F], F]:
    return lambda function: functools.reduce(lambda made, option: option(made), reversed(options), function)


rows = _together(
    click.option(
        "--rows",
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
inference = _together(
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
product = _together(
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


def make_source(options: dict[str, Any]) -> str | list[str]:
    """The file or files that hold the rows."""
    given = list(options["rows"])
    if not given:
        raise click.UsageError("Missing option '--rows'.")
    return given[0] if len(given) == 1 else given


def make_rows(options: dict[str, Any], standardise: Any = None) -> "Rows":
    """The rows that the options describe."""
    from epvi.site.rows.rows import Rows, check_arguments

    source = make_source(options)
    columns: dict[str, Any] = {}
    if options["x"]:
        columns["x"] = _list(options["x"])
    if options["y"]:
        columns["y"] = options["y"]
    for name, said in _pairs("--column", options["more"]).items():
        columns[name] = _list(said) if "," in said else said
    check_arguments(columns)
    if isinstance(standardise, Mapping):
        used = [name for of in columns.values() for name in ([of] if isinstance(of, str) else of)]
        standardise = {name: pair for name, pair in standardise.items() if name in used} or None
    return Rows(
        source,
        standardise=standardise,
        levels={name: _values(said) for name, said in _pairs("--levels", options["levels"]).items()} or None,
        limits={name: _range(name, said) for name, said in _pairs("--limits", options["limits"]).items()} or None,
        drop_missing=options["drop_missing"],
        **columns,
    )


def make_inference(options: dict[str, Any]) -> "NVI":
    """The inference that the options describe."""
    from epvi.site.fit.nvi import NVI
    from epvi.study.study import covariances

    return NVI(
        options["components"],
        covariances()[options["covariance"]],
        merge=not options["no_merge"],
        max_sweeps=options["max_sweeps"],
    )


def make_product(options: dict[str, Any]) -> "Product | None":
    """The product that the options describe."""
    from epvi.hub.product.anchored import Anchored
    from epvi.hub.product.chain import Chain
    from epvi.hub.product.exact import Exact
    from epvi.hub.product.subset import Subset

    way = {"auto": None, "exact": Exact, "chain": Chain, "subset": Subset, "anchored": Anchored}[options["product"]]
    if options["samples"] is None:
        return None if way is None else way()
    if way in (None, Exact):
        raise click.UsageError("--samples goes with --product chain, subset or anchored.")
    return way(num_samples=options["samples"])


def make_fixed(pairs: Sequence[str]) -> dict[str, Any]:
    """Fixed arguments: JSON values, arrays from .npy files ("@places.npy"), or else text."""
    return {name: _value(said) for name, said in _pairs("--set", pairs).items()}


def _value(said: str) -> Any:
    try:
        return json.loads(said)
    except ValueError:
        return said


def _pairs(option: str, said: Sequence[str]) -> dict[str, str]:
    made = {}
    for one in said:
        name, equals, value = one.partition("=")
        if not equals or not name or not value or name in made:
            raise click.UsageError(f"{option} {one}: write {option} NAME=VALUE, each name once.")
        made[name] = value
    return made


def _list(said: str) -> list[str]:
    return [name.strip() for name in said.split(",") if name.strip()]


def _values(said: str) -> list[Any]:
    from epvi.site.rows.numerals import is_plain

    values = _list(said)
    return [float(value) for value in values] if all(map(is_plain, values)) else values


def _range(name: str, said: str) -> tuple[float | None, float | None]:
    low, colon, high = said.partition(":")
    try:
        if not colon:
            raise ValueError
        return (float(low) if low else None), (float(high) if high else None)
    except ValueError:
        raise click.UsageError(f"--limits {name}={said}: write {name}=LOW:HIGH.") from None
