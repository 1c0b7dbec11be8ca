"""Run `make test` again and again, from a fresh clone and with empty caches, and say how long it took and how large.

    python3 tests/loop.py --runs 10 --busy 3

The last of the runs share the machine with a process that keeps one core busy. Needs the standard library and Linux's
/proc.
"""

import argparse
import contextlib
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
# Seconds between two looks at the memory of all processes.
LOOK_SECONDS = 0.5
# What a run leaves in the clone for the next one.
CACHES = (".pytest_cache", ".hypothesis")


@dataclasses.dataclass(frozen=True)
class Run:
    """One run: what make said, how long it took, and the largest resident set of a process of each kind."""

    code: int
    seconds: float
    counts: dict[str, int]
    peaks: dict[str, int]
    busy: bool

    def row(self, number: int) -> str:
        """A line of the table."""
        megabytes = [f"{self.peaks.get(kind, 0) / 2**20:10.0f}" for kind in KINDS]
        counts = [f"{self.counts.get(kind, 0):8d}" for kind in ("passed", "failed")]
        beside = "one core" if self.busy else "quiet"
        return " ".join([f"{number:3d} {beside:>9}", f"{self.seconds:8.0f}", *counts, *megabytes, f"{self.code:5d}"])


KINDS = ("pytest", "workers", "others")
HEADER = " ".join(
    ["run    beside", " seconds", "  passed", "  failed", *(f"{kind[:7]:>7} MB" for kind in KINDS), " code"]
)


def kind_of(command: str) -> str | None:
    """Which kind of process a command line is of; None when it is no Python."""
    if "python" not in command and "pytest" not in command:
        return None
    if "epvi.engines.serving" in command:
        return "workers"
    # pytest itself, and the processes that pytest-xdist starts.
    is_test = "pytest" in command or "exec(eval(sys.stdin.readline()))" in command
    return "pytest" if is_test else "others"


def processes() -> Iterator[tuple[int, int, str, int]]:
    """Id, parent, command line and resident bytes of all processes."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        # It may have ended.
        with contextlib.suppress(OSError, IndexError):
            folder = Path("/proc", name)
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            yield int(name), int(fields[1]), command, int(fields[21]) * os.sysconf("SC_PAGE_SIZE")


def descendants(root: int) -> Iterator[tuple[str, int]]:
    """Command lines and resident bytes of all processes below one."""
    children: dict[int, list[tuple[int, str, int]]] = {}
    for pid, parent, command, size in processes():
        children.setdefault(parent, []).append((pid, command, size))
    waiting = [root]
    while waiting:
        for pid, command, size in children.get(waiting.pop(), []):
            waiting.append(pid)
            yield command, size


def watch(root: int, peaks: dict[str, int], over: threading.Event) -> None:
    """Note the largest process of every kind until it is over."""
    while not over.wait(LOOK_SECONDS):
        for command, size in descendants(root):
            if kind := kind_of(command):
                peaks[kind] = max(peaks.get(kind, 0), size)


@contextlib.contextmanager
def one_core(busy: bool) -> Iterator[None]:
    """With a process beside that computes all the time, or without."""
    if not busy:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def run(clone: Path, options: argparse.Namespace, busy: bool) -> Run:
    """Once, with empty caches; what a run that failed has printed goes to stderr."""
    for name in CACHES:
        shutil.rmtree(clone / name, ignore_errors=True)
    peaks: dict[str, int] = {}
    over = threading.Event()
    with tempfile.TemporaryDirectory(prefix="epvi-loop-caches-") as caches, one_core(busy):
        folders = {name: str(Path(caches, name)) for name in ("EPVI_CACHE", "XDG_CACHE_HOME")}
        start = time.monotonic()
        process = subprocess.Popen(
            ["make", options.target, f"PYTHON={options.python}"],
            cwd=clone,
            env=os.environ | folders,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        watcher = threading.Thread(target=watch, args=(process.pid, peaks, over))
        watcher.start()
        said, _ = process.communicate()
        seconds = time.monotonic() - start
        over.set()
        watcher.join()
    if process.returncode:
        sys.stderr.write(said)
    last = said.rstrip().rpartition("\n")[2]
    found = re.findall(r"(\d+) (passed|failed)", last)
    return Run(process.returncode, seconds, {kind: int(number) for number, kind in found}, peaks, busy)


def main() -> int:
    """Clone, set up, run, and print the table; 1 when a run failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repository", default=str(REPOSITORY), help="what to clone (this repository)")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--busy", type=int, default=3, help="so many of them beside a process that uses one core")
    parser.add_argument("--python", default="python3", help="the interpreter that make is told to use")
    parser.add_argument("--target", default="test", help="the target of make")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="epvi-loop-") as folder:
        clone = Path(folder, "epvi")
        subprocess.run(["git", "clone", "--quiet", options.repository, str(clone)], check=True)
        version = subprocess.check_output(
            [options.python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], text=True
        ).strip()
        start = time.monotonic()
        subprocess.run(["make", f".venv/ready-{version}", f"PYTHON={options.python}"], cwd=clone, check=True)
        print(f"Python {version}; set up in {time.monotonic() - start:.0f} s", flush=True)
        runs = []
        for number in range(1, options.runs + 1):
            runs.append(run(clone, options, busy=number > options.runs - options.busy))
            print(HEADER, runs[-1].row(number), sep="\n", flush=True)
    print("", f"make {options.target}", HEADER, *(one.row(n) for n, one in enumerate(runs, start=1)), sep="\n")
    return int(any(one.code for one in runs))


if __name__ == "__main__":
    sys.exit(main())
