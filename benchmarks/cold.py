"""The part `cold` of tall.py: time from a Parquet file to a saved answer in a fresh interpreter, and peak memory.

epvi and scikit-learn read the same file, which is in the page cache after the first run. The compilation cache of epvi
(EPVI_CACHE) is empty for the first run and warm for the others.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet
from memory import GB, Memory, Watch, taken
from rounds import in_turn, median_seconds, timed, verdict
from susy import COLUMNS, Rows

# Targets: time relative to scikit-learn's, resident bytes of a worker, memory of all processes relative to the data.
COLD_RATIO, MOST_RESIDENT, MOST_OF_DATA = 2.5, 1 * GB, 1.5

EPVI = """
import sys, epvi
from epvi.models import logistic
source, answer, seed, *names = sys.argv[1:]
posterior = epvi.fit(logistic, epvi.Rows(source, x=names, y="y"), 2, executor=2, seed=int(seed), certify=False)
posterior.save(answer)
"""

SCIKIT_LEARN = """
import sys, numpy, pyarrow.parquet
from sklearn.linear_model import LogisticRegression
source, answer, seed, *names = sys.argv[1:]
table = pyarrow.parquet.read_table(source)
x = numpy.empty((table.num_rows, len(names)), numpy.float32)
for i, name in enumerate(names):
    x[:, i] = table[name].to_numpy()
numpy.save(answer, LogisticRegression(fit_intercept=False).fit(x, table["y"].to_numpy()).coef_)
"""

# Prints "ready" when it is warm, and waits before it makes the rows.
ARRAYS = """
import sys, epvi
from epvi.models import logistic
from susy import susy_like
num_rows, seed = map(int, sys.argv[1:])
epvi.fit(logistic, susy_like(2000, seed), 2, executor=2, seed=seed, certify=False)
print("ready", flush=True)
sys.stdin.readline()
rows = susy_like(num_rows, seed)
epvi.fit(logistic, rows, 2, executor=2, seed=seed, certify=False)
"""


def write_parquet(rows: Rows, path: Path) -> Path:
    columns = {name: rows["x"][:, i] for i, name in enumerate(COLUMNS)}
    pyarrow.parquet.write_table(pyarrow.table({**columns, "y": rows["y"]}), path)
    return path


def cold(rows: Rows, seed: int, repeats: int) -> None:
    """Print the tables and verdicts of this part."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = write_parquet(rows, folder / "rows.parquet")
        environment = environment_with(folder / "cache")
        arguments = [str(seed), *COLUMNS]

        def run(code: str, answer: str) -> None:
            command = [sys.executable, "-c", code, str(file), str(folder / answer), *arguments]
            subprocess.run(command, check=True, env=environment)

        print(
            f"Cold: {len(rows['y']):,} rows from a Parquet file of {file.stat().st_size / GB:.2f} GB to a saved answer,"
            " in fresh interpreters"
        )
        first = timed(lambda: run(EPVI, "posterior.epvi")).seconds
        run(SCIKIT_LEARN, "coef.npy")
        turns = in_turn(
            {"epvi": lambda: run(EPVI, "posterior.epvi"), "scikit-learn": lambda: run(SCIKIT_LEARN, "coef.npy")},
            repeats,
            warm=True,
        )
        epvi_seconds, peer_seconds = (median_seconds(turns[peer]) for peer in ("epvi", "scikit-learn"))
        print(f"{'epvi, two workers, nothing compiled before':46s}{first:8.2f} s{first / peer_seconds:8.2f}x")
        print(f"{'epvi, two workers':46s}{epvi_seconds:8.2f} s{epvi_seconds / peer_seconds:8.2f}x")
        print(f"{'scikit-learn':46s}{peer_seconds:8.2f} s{1:8.2f}x")
        ratio = epvi_seconds / peer_seconds
        print(verdict(ratio <= COLD_RATIO, f"cold at most {COLD_RATIO}x scikit-learn's cold; it is {ratio:.2f}x"))
        command = [sys.executable, "-c", EPVI, str(file), str(folder / "posterior.epvi"), *arguments]
        from_file = peak_of(command, environment)
        memory(rows, seed, from_file, environment)


def memory(rows: Rows, seed: int, from_file: Memory, environment: dict[str, str]) -> None:
    """Print the memory of a run from a file, and of one from arrays."""
    data = sum(column.nbytes for column in rows.values())
    command = [sys.executable, "-c", ARRAYS, str(len(rows["y"])), str(seed)]
    bare, peak = _bare_and_peak(command, environment)
    print(f"\nMemory of all processes at the peak; the data are {data / GB:.2f} GB as arrays in float32")
    print(f"{'from the file':46s}{from_file}; the largest worker {from_file.largest_child / GB:.2f} GB")
    print(f"{'from arrays, before the rows are there':46s}{bare}; the largest worker {bare.largest_child / GB:.2f} GB")
    print(f"{'from arrays':46s}{peak}; the largest worker {peak.largest_child / GB:.2f} GB")
    resident, share = max(from_file.largest_child, peak.largest_child), (peak.total - bare.total) / data
    said = f"each worker's resident memory below {MOST_RESIDENT / GB:.0f} GB; the largest is {resident / GB:.2f} GB"
    print(verdict(resident < MOST_RESIDENT, said))
    said = f"from arrays, at most {MOST_OF_DATA}x the data, these included, above bare processes; it is {share:.2f}x"
    print(verdict(share <= MOST_OF_DATA, said))


def environment_with(cache: Path) -> dict[str, str]:
    """Environment of an interpreter that imports benchmarks and has an empty compilation cache."""
    cache.mkdir()
    here = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "EPVI_CACHE": str(cache), "PYTHONPATH": os.pathsep.join(here)}


def peak_of(command: Sequence[str], environment: dict[str, str]) -> Memory:
    """Peak memory of a process and its children."""
    with subprocess.Popen(command, env=environment) as process, Watch(process.pid) as watch:
        process.wait()
    _check(process)
    return watch.peak


def _bare_and_peak(command: Sequence[str], environment: dict[str, str]) -> tuple[Memory, Memory]:
    """Memory before the rows are made, and peak memory afterwards."""
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        bare = taken(process.pid)
        with Watch(process.pid) as watch:
            process.communicate("\n")
    _check(process)
    return bare, watch.peak


def _check(process: subprocess.Popen) -> None:
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
