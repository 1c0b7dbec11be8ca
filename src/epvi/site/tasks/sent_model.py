"""A model as the bytes in which it is sent to workers, and the model again.

Functions of a module that can be imported are pickled by their names, and a worker imports the module by itself. If the
module has been edited and reloaded since, the same names mean other functions: the bytes have a hash of the model's
content, too, so that neither the caller nor a worker takes an old model for the new one.
"""

import functools
import site
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import cloudpickle

from epvi.ground.errors import EpviError
from epvi.site.model.model import Model


class StaleModelError(EpviError):
    """A process has imported the model's module as it was before."""


def packed(model: Model) -> bytes:
    """The model with the hash of its content, pickled by cloudpickle."""
    try:
        return cloudpickle.dumps((model.content(), model))
    except Exception as error:
        raise EpviError(
            f"the model cannot be sent to workers ({type(error).__name__}: {error}): keep files, locks and connections"
            " out of what it refers to."
        ) from error


@functools.lru_cache(maxsize=8)
def model_of(sent: bytes) -> Model:
    """The unpickled model; the same object for the same bytes, so that its compiled functions are reused."""
    content, model = cloudpickle.loads(sent)
    found = model.content()
    if content is not None and found is not None and found != content:
        raise StaleModelError(
            f"a worker has imported the module of {model.name} as it was before it was changed: restart the workers, or"
            " if the module's variables were changed while it ran, pass them to epvi.Model as fixed arguments."
        )
    return model


def model_for(sent: bytes, own_worker: bool) -> Model:
    """The model for a task; in epvi's own worker, where nobody else uses its module, that is imported anew if stale."""
    try:
        return model_of(sent)
    except StaleModelError:
        if not own_worker:
            raise
        _forget_users_modules()
        return model_of(sent)


def _forget_users_modules() -> None:
    for name in list(_users_modules()):
        del sys.modules[name]


def _users_modules() -> Iterator[str]:
    """Modules from files outside of Python's own folders and of those for installed packages."""
    installed = {*sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages()}
    folders = [Path(folder) for folder in installed]
    for name, module in sys.modules.items():
        file = getattr(module, "__file__", None)
        if file is None or name.partition(".")[0] in ("epvi", "__main__"):
            continue
        if not any(Path(file).is_relative_to(folder) for folder in folders):
            yield name
