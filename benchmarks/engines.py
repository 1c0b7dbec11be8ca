"""What an engine costs: 40 Parquet files that stay where they are, fitted by two workers of each engine.

Run: python benchmarks/engines.py [--rows 4000000] [--engines local,dask,ray] [--folder FOLDER]. Files are made first:
20 columns of normals and a label. Each engine has a process of its own for the caller, and its cluster in others. Told
are the seconds of the first fit (with programs that are compiled or read from the cache) and of a later one, the
caller's peak memory above what it holds before the fit (epvi and the engine imported), and the bytes that it sends.
"""

import argparse
import contextlib
import importlib
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

FILES, COLUMNS, WARM = 40, 20, 3


def write_files(folder: Path, num_rows: int) -> None:
    """Files of equal numbers of rows, unless they are there."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    folder.mkdir(parents=True, exist_ok=True)
    w = np.random.default_rng(0).normal(size=COLUMNS) / np.sqrt(COLUMNS)
    each = num_rows // FILES
    for i in range(FILES):
        file = folder / f"part-{i:02d}.parquet"
        if not file.exists():
            rng = np.random.default_rng(i + 1)
            x = rng.normal(size=(each, COLUMNS))
            label = rng.random(each) < 1 / (1 + np.exp(-x @ w))
            columns = {f"x{j}": x[:, j] for j in range(COLUMNS)} | {"label": label.astype(np.int8)}
            parquet.write_table(pa.table(columns), file)


def memory(which: str) -> float:
    """A line of this process's memory in MB: VmRSS now, or VmHWM at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith(which))


class Sent:
    """Counts the bytes that this process sends, by replacing what sends them."""

    def __init__(self) -> None:
        self.num_bytes = 0

    def count_pipes(self) -> None:
        from epvi.engines import process

        send = process.send

        def counted(stream: Any, message: bytes) -> None:
            self.num_bytes += len(message)
            send(stream, message)

        process.send = counted

    def count_calls(self, engine: Any) -> None:
        """Recipes, tasks and what goes with them, where nothing says what is really sent."""
        place, run = engine.place, engine.map

        def placed(fragments: Any, load: Any) -> Any:
            self.num_bytes += sum(len(pickle.dumps(fragment)) for fragment in fragments)
            return place(fragments, load)

        def mapped(task: bytes, handles: Any, *, each: Any, name: str) -> Any:
            self.num_bytes += len(task) + sum(map(len, each))
            return run(task, handles, each=each, name=name)

        engine.place, engine.map = placed, mapped

    def count_dask(self) -> None:
        from distributed.comm import tcp

        write = tcp.TCP.write

        async def counted(comm: Any, *arguments: Any, **options: Any) -> Any:
            sent = await write(comm, *arguments, **options)
            self.num_bytes += sent
            return sent

        setattr(tcp.TCP, "write", counted)  # noqa: B010 (its type has other names)


@contextlib.contextmanager
def local(sent: Sent) -> Iterator[Any]:
    import epvi

    sent.count_pipes()
    yield epvi.engines.Local(2)


@contextlib.contextmanager
def dask(sent: Sent) -> Iterator[Any]:
    import epvi

    cluster = subprocess.Popen([sys.executable, __file__, "--cluster"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert cluster.stdin is not None
    assert cluster.stdout is not None
    try:
        from distributed import Client

        sent.count_dask()
        with Client(cluster.stdout.readline().decode().strip()) as client:
            yield epvi.engines.Dask(client)
    finally:
        cluster.stdin.close()
        cluster.wait()


def hold_cluster() -> None:
    """A Dask cluster until the standard input is closed."""
    from distributed import LocalCluster

    made: Any = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50)
    with made as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()


@contextlib.contextmanager
def ray(sent: Sent) -> Iterator[Any]:
    import epvi

    ray = importlib.import_module("ray")
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    engine = epvi.engines.Ray()
    sent.count_calls(engine)
    yield engine
    ray.shutdown()


ENGINES = {"local": local, "dask": dask, "ray": ray}


def measure(name: str, folder: Path) -> dict[str, Any]:
    """One engine, in this process."""
    import epvi
    from epvi.models import logistic
    from epvi.run import fit

    assert fit is not None
    names = [f"x{j}" for j in range(COLUMNS)]
    rows = epvi.Rows(str(folder / "*.parquet"), x=names, y="label", standardise=True)
    sent = Sent()
    with ENGINES[name](sent) as engine:
        before, seconds, num_bytes, posterior = memory("VmRSS"), [], [], None
        # The highest mark is set to what is held now.
        Path("/proc/self/clear_refs").write_text("5")
        for _ in range(1 + WARM):
            start, earlier = time.perf_counter(), sent.num_bytes
            posterior = epvi.fit(logistic, rows, engine=engine)
            seconds.append(time.perf_counter() - start)
            num_bytes.append(sent.num_bytes - earlier)
        assert posterior is not None
        assert posterior.certificate is not None
        return {
            "engine": name,
            "first": seconds[0],
            "warm": statistics.median(seconds[1:]),
            "peak": memory("VmHWM") - before,
            "sent": max(num_bytes) / 1e6,
            "verdict": str(posterior.certificate.verdict),
            "mean": np.asarray(posterior.mixture.mean()).tolist(),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--folder", type=Path, help="where the files are, or are to be made")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--cluster", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cluster:
        hold_cluster()
        return
    if options.one:
        print(json.dumps(measure(options.one, options.folder)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        write_files(folder, options.rows)
        print(f"{options.rows:,} x {COLUMNS} rows in {FILES} files, two workers")
        print(f"{'engine':8}{'first':>9}{'warm':>9}{'of local':>10}{'peak':>10}{'sent':>10}  verdict")
        found: list[dict[str, Any]] = []
        for name in options.engines.split(","):
            command = [sys.executable, __file__, "--one", name, "--folder", str(folder)]
            found.append(json.loads(subprocess.check_output(command, env=os.environ).splitlines()[-1]))
            one = found[-1]
            ratio = one["warm"] / found[0]["warm"]
            print(
                f"{name:8}{one['first']:8.1f}s{one['warm']:8.2f}s{ratio:10.2f}{one['peak']:7.0f} MB"
                f"{one['sent']:7.1f} MB  {one['verdict']}"
            )
        print("means are the same to the last bit:", all(one["mean"] == found[0]["mean"] for one in found))


if __name__ == "__main__":
    main()
