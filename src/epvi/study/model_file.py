"""A model file: looked for, read once, and run, since it is a program.

Takes the path that a user or a study names; gives the module. A study comes from others, so that what it names must be
inside its own folder, and is told on stderr, with its hash, before it runs.
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

# What lies in the root of an environment: programs in it are not the study's, whatever folder they are in.
_ENVIRONMENT = ("pyvenv.cfg", "conda-meta")


def inside(folder: Path, place: str) -> Path:
    """The file that a study names, refused when it is not in the study's own folder."""
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


def run_file(path: Path, place: str, *, told: bool = False) -> ModuleType:
    """The module that a file makes; with `told`, its path and hash are written to stderr before it runs.

    What runs is what was hashed: a compiled file beside it is not looked at.
    """
    try:
        source = path.read_bytes()
    except OSError as error:
        raise EpviError(f"{place} cannot be read: {error.strerror or error}.") from error
    if told:
        tell(f"the model file {path}, a program (SHA-256 {hashlib.sha256(source).hexdigest()})")
    return _module_of(path, place, source)


@functools.cache
def tell(what: str) -> None:
    """Say once on stderr what is about to run."""
    sys.stderr.write(f"epvi: running {shown(what)}.\n")
    sys.stderr.flush()


@functools.cache
def _module_of(path: Path, place: str, source: bytes) -> ModuleType:
    import cloudpickle

    name = f"epvi_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # Workers do not have this file on their path: what it defines travels by value, what lies beside it is imported.
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise EpviError(f"{place} cannot be run: {told_of(error, path)}") from error
    cloudpickle.register_pickle_by_value(module)
    return module


def is_at_home(function: Any, module: ModuleType) -> bool:
    """Whether a file's function was written in its folder, or is a ready model, and not imported from elsewhere."""
    function = inspect.unwrap(function)
    if not (inspect.isroutine(function) or inspect.isclass(function)):
        # Something that the file has made.
        return True
    if function.__module__ == module.__name__:
        # Known without looking for its module, whose name another site's file of the same name may have taken since.
        return True
    home = sys.modules.get(function.__module__ or "")
    file = getattr(home, "__file__", None)
    if home is None or file is None:
        return False
    return home.__name__.startswith("epvi.models.") or os.path.dirname(file) == os.path.dirname(module.__file__ or "")


def told_of(error: BaseException, path: Path | None) -> str:
    """What went wrong, and in which line of the user's file."""
    line = getattr(error, "lineno", None)
    trace = error.__traceback__
    while trace is not None:
        if path is not None and trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    where = f" (line {line})" if line else ""
    return f"{type(error).__name__}{where}: {(str(error).splitlines() or [''])[0][:200].rstrip('.')}."
