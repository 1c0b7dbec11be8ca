"""Models by name: `file.py:function`, `module:function`, or a ready model such as `logistic`.

Takes the text that a user writes on the command line or in a study; gives the `Model`. What it names is imported, so it
is the user's own code, never something that came with a file of results.
"""

import functools
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from epvi.errors import EpviError

if TYPE_CHECKING:
    from epvi.site.model import Model

# Known without importing them, so that help and completion answer at once.
READY = ("logistic", "multinomial", "poisson", "robust_linear", "tlsa")


def model_named(reference: str, fixed: Mapping[str, Any] | None = None, beside: Path | None = None) -> "Model":
    """The model of a reference with these fixed arguments; files are looked for `beside` a folder."""
    from epvi.site.model import Model

    function, exchangeable = _found(reference, beside)
    fixed = {name: _fixed(name, said, beside) for name, said in (fixed or {}).items()}
    if isinstance(function, Model):
        if fixed:
            raise EpviError(f"{reference} is a Model with its own fixed arguments: name its function to fix others.")
        return function
    if not callable(function):
        raise EpviError(f"{reference} is of type {type(function).__name__}: name a NumPyro model function.")
    return Model(function, exchangeable=exchangeable, **fixed)


def _fixed(name: str, said: Any, beside: Path | None) -> Any:
    """A fixed argument as it is written: a list of numbers is an array, and "@file.npy" the array in a file."""
    import numpy as np

    if isinstance(said, str) and said.startswith("@"):
        path = (beside or Path()) / said[1:]
        try:
            return np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error).splitlines()[0][:100]
            raise EpviError(f"{name} cannot be read from {path} ({why}): name a .npy file of numbers.") from None
    if not isinstance(said, list):
        return said
    try:
        array = np.asarray(said)
    except ValueError:
        return said
    return array if array.dtype.kind in "biuf" and array.size else said


def _found(reference: str, beside: Path | None) -> tuple[Any, tuple]:
    place, colon, name = reference.rpartition(":")
    if not colon:
        if reference not in READY:
            raise _unnamed(reference)
        return _ready(reference)
    module = _from_file(place, beside) if place.endswith(".py") else _imported(place)
    if not hasattr(module, name):
        here = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
        listed = f" (it has {', '.join(sorted(here)[:10])})" if here else ""
        raise EpviError(f"{place} has no {name!r}{listed}: name a NumPyro model function in it.")
    return getattr(module, name), ()


def _unnamed(reference: str) -> EpviError:
    if reference.endswith(".py"):
        return EpviError(f"{reference} is a file: name the model function in it, as in {reference}:logistic.")
    if reference.endswith(".toml"):
        return EpviError(f"{reference} is a study, and here a model is asked for: write file.py:function.")
    return EpviError(
        f"there is no ready model {reference!r}: write file.py:function, module:function, or one of {', '.join(READY)}."
    )


def _ready(name: str) -> tuple[Any, tuple]:
    from epvi import models
    from epvi.models.tlsa import EXCHANGEABLE

    return getattr(models, name), EXCHANGEABLE if name == "tlsa" else ()


def _from_file(place: str, beside: Path | None) -> ModuleType:
    path = ((beside or Path()) / place).resolve()
    if not path.is_file():
        raise EpviError(f"there is no model file {place}: check its path.")
    return _module_of(path, place)


@functools.cache
def _module_of(path: Path, place: str) -> ModuleType:
    import cloudpickle

    name = f"epvi_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Workers do not have this file on their path: what it defines travels by value, what lies beside it is imported.
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise EpviError(f"{place} cannot be run: {_said(error, path)}") from error
    cloudpickle.register_pickle_by_value(module)
    return module


def _imported(place: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except (Exception, SystemExit) as error:
        raise EpviError(f"the module {place!r} cannot be imported: {_said(error, None)}") from error


def _said(error: BaseException, path: Path | None) -> str:
    """What went wrong, and in which line of the user's file."""
    line = getattr(error, "lineno", None)
    trace = error.__traceback__
    while trace is not None:
        if path is not None and trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    where = f" (line {line})" if line else ""
    return f"{type(error).__name__}{where}: {(str(error).splitlines() or [''])[0][:200].rstrip('.')}."
