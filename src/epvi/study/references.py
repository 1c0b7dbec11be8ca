"""Resolves references to models: `file.py:function`, `module:function`, or a ready model such as `logistic`.

Takes the text from the command line or from a study; gives the `Model`. The file or module is imported, which runs its
code: a user may name anything, but a study, which comes from other people, only a file in its own folder.
"""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from epvi.ground.errors import EpviError
from epvi.study.model_file import announce, described_error, inside, is_defined_beside, run_file

if TYPE_CHECKING:
    from epvi.site.model.model import Model

# Names of the ready models, listed here so that help and shell completion need not import them.
READY = ("logistic", "multinomial", "poisson", "robust_linear", "tlsa")
# Names of `Model`'s own parameters, which cannot be fixed arguments of a model.
_RESERVED = ("self", "function", "exchangeable", "groups")


def model_named(
    reference: str,
    fixed: Mapping[str, Any] | None = None,
    beside: Path | None = None,
    *,
    groups: str | None = None,
) -> "Model":
    """The model that a user refers to, with these fixed arguments; paths are relative to the folder `beside`."""
    folder = beside or Path()
    found = _found(reference, lambda place, name: _named_in(_module(place, folder), place, name))
    return _model(reference, *found, _all_fixed(fixed, lambda place: folder / place), groups)


def study_model(
    reference: str, fixed: Mapping[str, Any], folder: Path, *, groups: str | None = None, allow_module: bool = False
) -> "Model":
    """The model that a study names: a ready one, one in a file in its folder or, if `allow_module`, one in a module.

    The file's path and SHA-256 are written to stderr before it runs.
    """

    def named(place: str, name: str) -> Any:
        if place.endswith(".py"):
            module = run_file(inside(folder, place), place, announced=True)
            function = _named_in(module, place, name)
            if callable(function) and not is_defined_beside(function, module):
                raise EpviError(f"{reference} is only imported there: name a model function that the file defines.")
            return function
        if not allow_module:
            raise EpviError(
                f"{reference!r} in the study names an installed module, which a study may not run: put a model file"
                " beside the study (file.py:function), or allow it with --allow-module."
            )
        announce(f"the module {place} that the study names")
        return _named_in(_imported(place), place, name)

    plain = _all_fixed(fixed, lambda place: inside(folder, place))
    made = _model(reference, *_found(reference, named), plain, groups)
    if made.groups != groups:
        raise EpviError(f'the study lacks the groups of {reference}: add groups = "{made.groups}" above its tables.')
    return made


def _model(
    reference: str, function: Any, exchangeable: tuple | None, fixed: dict[str, Any], groups: str | None
) -> "Model":
    from epvi.site.model.model import Model

    if isinstance(function, Model):
        if fixed:
            raise EpviError(f"{reference} is a Model with its own fixed arguments: name its function to fix others.")
        if groups not in (None, function.groups):
            raise EpviError(
                f"{reference} is a Model with groups={function.groups!r}, and here the groups are {groups!r}: name the"
                " same in both, or refer to its function."
            )
        return function
    if not callable(function):
        raise EpviError(f"{reference} is of type {type(function).__name__}: name a NumPyro model function.")
    taken = [name for name in _RESERVED if name in fixed]
    if taken:
        raise EpviError(f"an argument {taken[0]!r} cannot be fixed by name: rename it in {reference}.")
    return Model(function, exchangeable=exchangeable, groups=groups, **fixed)


def _all_fixed(fixed: Mapping[str, Any] | None, file: Callable[[str], Path]) -> dict[str, Any]:
    return {name: _fixed(name, said, file) for name, said in (fixed or {}).items()}


def _fixed(name: str, said: Any, file: Callable[[str], Path]) -> Any:
    """The value of a fixed argument: a list of numbers becomes an array, "@file.npy" the array in that file."""
    import numpy as np

    if isinstance(said, str) and said.startswith("@"):
        return _array(name, said[1:], file)
    if not isinstance(said, list):
        return said
    try:
        array = np.asarray(said)
    except ValueError:
        return said
    return array if array.dtype.kind in "biuf" and array.size else said


def _array(name: str, place: str, file: Callable[[str], Path]) -> Any:
    import numpy as np

    try:
        found = np.load(file(place), allow_pickle=False)
    except EpviError as error:
        raise EpviError(f"{name} cannot be read from {place}: {error}") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error).splitlines()[0][:100]
        raise EpviError(f"{name} cannot be read from {place} ({why}): name a .npy file of numbers.") from None
    if not isinstance(found, np.ndarray):
        found.close()
        raise EpviError(f"{name} cannot be read from {place}, which holds several arrays: name a .npy file of numbers.")
    return found


def _found(reference: str, named: Callable[[str, str], Any]) -> tuple[Any, tuple | None]:
    """The model function and its exchangeable parameters: a ready model, or what `named(place, name)` finds."""
    place, colon, name = reference.rpartition(":")
    if colon:
        return named(place, name), None
    if reference not in READY:
        raise _unnamed(reference)
    from epvi import models
    from epvi.models.tlsa import EXCHANGEABLE

    return getattr(models, reference), EXCHANGEABLE if reference == "tlsa" else None


def _unnamed(reference: str) -> EpviError:
    if reference.endswith(".py"):
        return EpviError(f"{reference} is a file: name the model function in it, as in {reference}:logistic.")
    if reference.endswith(".toml"):
        return EpviError(f"{reference} is a study, and here a model is asked for: write file.py:function.")
    return EpviError(
        f"there is no ready model {reference!r}: write file.py:function, module:function, or one of {', '.join(READY)}."
    )


def _named_in(module: ModuleType, place: str, name: str) -> Any:
    if not hasattr(module, name):
        here = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
        listed = f" (it has {', '.join(sorted(here)[:10])})" if here else ""
        raise EpviError(f"{place} has no {name!r}{listed}: name a NumPyro model function in it.")
    return getattr(module, name)


def _module(place: str, folder: Path) -> ModuleType:
    if not place.endswith(".py"):
        return _imported(place)
    path = (folder / place).resolve()
    if not path.is_file():
        raise EpviError(f"there is no model file {place}: check its path.")
    return run_file(path, place)


def _imported(place: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except (Exception, SystemExit) as error:
        raise EpviError(f"the module {place!r} cannot be imported: {described_error(error, None)}") from error
