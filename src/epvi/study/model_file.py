"""Locates and executes a Python file that defines a model.

Takes the path that a user or a study names; gives the module. Executing it runs arbitrary code. A study comes from
other people, so its file must be inside the study's own folder, and is announced on stderr with its SHA-256 before it
runs.
"""

import functools
import hashlib
import importlib.util
import inspect
import os
import sys
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

from epvi.ground.errors import EpviError
from epvi.ground.printable import shown

# Files that mark the root of a virtual or conda environment: its modules are not the study's, even in its folder.
_ENVIRONMENT = ("pyvenv.cfg", "conda-meta")


def inside(folder: Path, place: str) -> Path:
    """Resolve a file that a study names; an error unless it is in the study's own folder, symbolic links included."""
    named, root = PurePath(place), folder.resolve()
    try:
        path = (folder / place).resolve(strict=True)
    except (OSError, ValueError, RuntimeError):
        path = None
    out = named.is_absolute() or ".." in named.parts or (path is not None and not path.is_relative_to(root))
    if out:
        raise EpviError(f"{place} leads out of the study's folder {folder}: put the file beside the study.")
    if path is None or not path.is_file():
        raise EpviError(f"there is no file {place} beside the study in {folder}: check its path.")
    between = path.parents[: path.parents.index(root)]
    if any((parent / sign).exists() for parent in between for sign in _ENVIRONMENT):
        raise EpviError(f"{place} belongs to an installation of Python: put a model file beside the study.")
    return path


def run_file(path: Path, place: str, *, announced: bool = False) -> ModuleType:
    """Execute a file as a module; if `announced`, its path and SHA-256 are written to stderr first.

    The bytes that are executed are those that were hashed: no .pyc file is used.
    """
    try:
        source = path.read_bytes()
    except OSError as error:
        raise EpviError(f"{place} cannot be read: {error.strerror or error}.") from error
    if announced:
        announce(f"the model file {path}, a program (SHA-256 {hashlib.sha256(source).hexdigest()})")
    return _module_of(path, place, source)


@functools.cache
def announce(what: str) -> None:
    """Write to stderr what is about to run, once per process."""
    sys.stderr.write(f"epvi: running {shown(what)}.\n")
    sys.stderr.flush()


@functools.cache
def _module_of(path: Path, place: str, source: bytes) -> ModuleType:
    import cloudpickle

    name = f"epvi_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # Workers cannot import this file: cloudpickle sends what it defines by value. What lies beside it can be imported.
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise EpviError(f"{place} cannot be run: {described_error(error, path)}") from error
    cloudpickle.register_pickle_by_value(module)
    return module


def is_defined_beside(function: Any, module: ModuleType) -> bool:
    """Whether the function is defined in the model file or its folder, or is one of epvi's ready models."""
    function = inspect.unwrap(function)
    if not (inspect.isroutine(function) or inspect.isclass(function)):
        # An object that the file has created, such as a partial function.
        return True
    if function.__module__ == module.__name__:
        # Not by way of `sys.modules`, where another site's file of the same name may have replaced this one.
        return True
    home = sys.modules.get(function.__module__ or "")
    file = getattr(home, "__file__", None)
    if home is None or file is None:
        return False
    return home.__name__.startswith("epvi.models.") or os.path.dirname(file) == os.path.dirname(module.__file__ or "")


def described_error(error: BaseException, path: Path | None) -> str:
    """The exception's type and message, with the line of the user's file if it is in the traceback."""
    line = getattr(error, "lineno", None)
    trace = error.__traceback__
    while trace is not None:
        if path is not None and trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    where = f" (line {line})" if line else ""
    return f"{type(error).__name__}{where}: {(str(error).splitlines() or [''])[0][:200].rstrip('.')}."
