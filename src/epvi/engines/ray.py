"""Ray as an engine: its tasks read the fragments, or have blocks of a Ray dataset, and its object store keeps the rows.

Rows are the results of ordinary tasks, which all workers of a node read without copying them. When a node is lost, Ray
runs the task again that made what was on it. There are no actors.
"""

import dataclasses
import importlib
import pickle
from collections.abc import Generator, Sequence
from typing import Any

from epvi.engines import ray_worker
from epvi.engines.engine import Load
from epvi.engines.performing import failure, lost
from epvi.ground.errors import EpviError
from epvi.wire.fragment import Fragment

# Seconds between looks for an interrupt while no task ends. Judgement.
_POLL_SECONDS = 0.5
# Workers that a task may lose: as often as Dask's.
_RETRIES = 3


@dataclasses.dataclass(eq=False)
class _Object:
    """A reference to an object of Ray's, which is freed when it is not referred to any more."""

    ref: Any


class Ray:
    """A Ray cluster: the one that this process is connected to, or else one that `ray.init()` starts or finds."""

    def __init__(self) -> None:
        self._ray = _imported()
        if not self._ray.is_initialized():
            self._ray.init(log_to_driver=False)
        remote = self._ray.remote(num_cpus=1, max_retries=_RETRIES)
        self._load, self._run = remote(ray_worker.load), remote(ray_worker.run)

    def __repr__(self) -> str:
        return "Ray()"

    @property
    def said(self) -> str:
        """Who works, for the log."""
        return f"Ray with {self._ray.cluster_resources().get('CPU', 0):.0f} CPUs"

    @property
    def owns_workers(self) -> bool:
        """Others may use them."""
        return False

    def partitions(self, source: Any, columns: Sequence[str]) -> list[Any]:
        """The blocks of a Ray dataset, which the cluster computes and keeps while they are wanted."""
        if not hasattr(source, "to_arrow_refs"):
            raise EpviError(
                f"rows are a {type(source).__name__}, which Ray's workers cannot read: pass files that all of them can"
                " read, or a Ray dataset."
            )
        there = source.columns() or []
        lacking = [name for name in columns if name not in there]
        if lacking:
            listed = ", ".join(there[:8])
            raise EpviError(f"the Ray dataset has no column {lacking[0]!r}: its columns are {listed}.")
        return list((source.select_columns(list(columns)) if columns else source).to_arrow_refs())

    def place(self, fragments: Sequence[Fragment], load: Load) -> list[_Object]:
        """The rows of each fragment as an object that Ray keeps."""
        recipes = [pickle.dumps((load, fragment.without_partitions())) for fragment in fragments]
        return [
            _Object(self._load.options(name="epvi-rows").remote(recipe, *fragment.partitions))
            for recipe, fragment in zip(recipes, fragments, strict=True)
        ]

    def map(
        self, task: bytes, handles: Sequence[_Object], *, each: Sequence[bytes], name: str
    ) -> Generator[tuple[int, bytes]]:
        """Run a task on the rows of every handle; see `Engine.map`."""
        run, sent = self._run.options(name=f"epvi-{name}"), self._ray.put(task)
        pending = {
            run.remote(sent, handle.ref, of): i for i, (handle, of) in enumerate(zip(handles, each, strict=True))
        }
        try:
            while pending:
                done, _ = self._ray.wait(list(pending), timeout=_POLL_SECONDS)
                for ref in done:
                    yield pending.pop(ref), self._result(ref)
        finally:
            for ref in pending:
                self._ray.cancel(ref)

    def release(self, handles: Sequence[_Object]) -> None:
        """Let the object store free the rows."""
        for handle in handles:
            handle.ref = None

    def _result(self, ref: Any) -> bytes:
        """What a task gave, or why it gave nothing."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(ref)
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError) as error:
            return lost(f"Ray has run the task on workers that died, the last time: {type(error).__name__}")
        except errors.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            if "failed to import on the worker" in str(cause) and "'epvi" in str(cause):
                cause = EpviError(
                    "a Ray worker has no epvi, or another version of it: install the caller's version on all nodes."
                )
            return failure(cause)
        except errors.RayError as error:
            return failure(RuntimeError(f"Ray could not run the task: {type(error).__name__}"))


def _imported() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise EpviError("epvi.engines.Ray needs Ray: pip install 'epvi[ray]'.") from None
