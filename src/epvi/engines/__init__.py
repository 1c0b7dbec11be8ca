"""Execution of tasks: a pool of worker processes on this machine, and engines that run tasks where rows are."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epvi.engines.dask import Dask
    from epvi.engines.engine import Engine
    from epvi.engines.local_engine import Local
    from epvi.engines.ray import Ray

__all__ = ["Dask", "Engine", "Local", "Ray"]


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from epvi.engines.engine import Engine

        return Engine
    if name in __all__:
        from epvi.engines.known import engine_class

        return engine_class(name)
    raise AttributeError(f"module 'epvi.engines' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
