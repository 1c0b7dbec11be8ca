"""Dask as an engine: its workers read the fragments, or have them as partitions of a Dask data frame, and keep them.

Rows are the results of ordinary tasks, so that Dask makes them again on another worker when one is lost. No task is
bound to a worker, and there are no actors.
"""

import pickle
import uuid
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from epvi.engines import dask_worker
from epvi.engines.engine import Load
from epvi.engines.performing import failure, lost
from epvi.ground.errors import EpviError
from epvi.ground.log import logger
from epvi.wire.fragment import Fragment

if TYPE_CHECKING:
    from distributed import Client, Future

# Bytes of a task that are sent together. Dask warns of 10 MB and more. Judgement.
_PART = 2**22


class Dask:
    """A Dask cluster: `client` is a `dask.distributed.Client` or a scheduler's address; without, the current one."""

    def __init__(self, client: "Client | str | None" = None) -> None:
        distributed = _distributed()
        # The methods of a client are synchronous or not, which their types do not say.
        made: Any = _connected(distributed, client) if isinstance(client, str) else client
        if made is None:
            try:
                made = distributed.default_client()
            except ValueError:
                raise EpviError(
                    "there is no Dask client: make one first, as in client = dask.distributed.Client(), and pass"
                    " engine=epvi.engines.Dask(client)."
                ) from None
        if not isinstance(made, distributed.Client) or made.asynchronous:
            raise EpviError(
                f"client is {client!r}: pass a dask.distributed.Client, not asynchronous, or a scheduler's address."
            )
        self._client = made

    def __repr__(self) -> str:
        return f"Dask({self._address!r})"

    @property
    def _address(self) -> str:
        return str(getattr(self._client.scheduler, "address", "closed"))

    @property
    def said(self) -> str:
        """Who works, for the log."""
        return f"Dask at {self._address} with {len(self._client.nthreads())} workers"

    @property
    def owns_workers(self) -> bool:
        """Others may use them."""
        return False

    def partitions(self, source: Any, columns: Sequence[str]) -> "list[Future]":
        """The partitions of a Dask data frame, which the cluster computes and keeps while they are wanted."""
        if not hasattr(source, "to_delayed") or not hasattr(source, "columns"):
            raise EpviError(
                f"rows are a {type(source).__name__}, which Dask's workers cannot read: pass files that all of them can"
                " read, or a Dask data frame."
            )
        lacking = [name for name in columns if name not in source.columns]
        if lacking:
            listed = ", ".join(map(str, list(source.columns)[:8]))
            raise EpviError(f"the Dask data frame has no column {lacking[0]!r}: its columns are {listed}.")
        chosen = source[list(columns)] if columns else source
        return list(self._client.compute(chosen.to_delayed()))

    def place(self, fragments: Sequence[Fragment], load: Load) -> "list[Future]":
        """The rows of each fragment as a result that Dask keeps."""
        token = uuid.uuid4().hex
        return [
            self._client.submit(
                dask_worker.load,
                pickle.dumps((load, fragment.without_partitions())),
                list(fragment.partitions),
                key=f"epvi-rows-{token}-{i}",
                pure=False,
            )
            for i, fragment in enumerate(fragments)
        ]

    def map(
        self, task: bytes, handles: "Sequence[Future]", *, each: Sequence[bytes], name: str
    ) -> Generator[tuple[int, bytes]]:
        """Run a task on the rows of every handle; see `Engine.map`."""
        from distributed import as_completed

        token, client = uuid.uuid4().hex, self._client
        if not client.nthreads():
            logger.warning("Dask at %s has no workers: waiting for one", self._address)
        parts = [
            client.submit(
                dask_worker.carried, task[begin : begin + _PART], key=f"epvi-task-{token}-{begin}", pure=False
            )
            for begin in range(0, len(task), _PART)
        ]
        # Tasks of lower numbers first, whose rows are read first, too.
        futures = {
            client.submit(dask_worker.run, parts, handle, of, key=f"epvi-{name}-{token}-{i}", pure=False): i
            for i, (handle, of) in enumerate(zip(handles, each, strict=True))
        }
        try:
            for future in as_completed(list(futures)):
                yield futures[future], _result(future)
                future.release()
        finally:
            left = [future for future in futures if not future.done()]
            if left:
                client.cancel(left)
            for future in (*futures, *parts):
                future.release()

    def release(self, handles: "Sequence[Future]") -> None:
        """Let the cluster free the rows."""
        for handle in handles:
            handle.release()


def _result(future: "Future") -> bytes:
    """What a task gave, or why it gave nothing."""
    from distributed import KilledWorker

    error = future.exception() if future.status != "finished" else None
    if error is None:
        return future.result()
    if isinstance(error, KilledWorker):
        return lost(f"Dask has run the task on workers that died, the last one {error.last_worker.address}")
    if isinstance(error, ModuleNotFoundError | AttributeError) and "epvi" in str(error):
        return failure(
            EpviError(
                f"a Dask worker has no epvi, or another version of it ({error}): install the caller's on all workers."
            )
        )
    return failure(error if isinstance(error, Exception) else RuntimeError("Dask has cancelled the task"))


def _distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise EpviError("epvi.engines.Dask needs Dask: pip install 'epvi[dask]'.") from None
    return distributed


def _connected(distributed: Any, address: str) -> Any:
    try:
        return distributed.Client(address)
    except (OSError, ValueError) as error:
        raise EpviError(
            f"there is no Dask scheduler at {address!r} ({type(error).__name__}): check the address."
        ) from error
