"""The engines that epvi brings, by name, and which of them holds a source of rows; imported when asked for."""

import importlib
from typing import Any

from epvi.engines.engine import Engine
from epvi.ground.errors import EpviError

# The module of each engine.
_ENGINES = {"Local": "epvi.engines.local_engine", "Dask": "epvi.engines.dask", "Ray": "epvi.engines.ray"}
# The engine of a source, by the package of its class.
_HOLDERS = {"dask": "Dask", "dask_expr": "Dask", "ray": "Ray"}


def engine_class(name: str) -> Any:
    """The class of an engine."""
    return getattr(importlib.import_module(_ENGINES[name]), name)


def named(text: str) -> Engine:
    """The engine that a command line names: "local", "local=4" with four workers, "dask=tcp://host:8786" or "ray"."""
    kind, _, where = text.partition("=")
    if kind == "local" and (not where or (where.isdecimal() and int(where) > 0)):
        return engine_class("Local")(int(where) if where else None)
    if kind == "dask" and where:
        return engine_class("Dask")(where)
    if text == "ray":
        return engine_class("Ray")()
    raise EpviError(f"there is no engine {text!r}: write local, local=4 (workers), dask=tcp://host:8786, or ray.")


def holder_of(source: Any) -> Engine | None:
    """The engine that holds a source of rows, such as a Dask data frame; None for files and rows in memory."""
    name = _HOLDERS.get(type(source).__module__.partition(".")[0])
    return None if name is None else engine_class(name)()


def checked(engine: Any) -> Engine:
    """The argument of `epvi.fit`."""
    if isinstance(engine, type) or not isinstance(engine, Engine):
        listed = " or ".join(f"epvi.engines.{name}(...)" for name in _ENGINES)
        raise EpviError(f"engine is {engine!r}: pass {listed}.")
    return engine
