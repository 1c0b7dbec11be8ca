"""A run that is killed at any moment goes on where it was, and ends as if nothing had happened."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from commands import MODEL, ended, environment, started
from sentences import refused

import epvi
from epvi.ground.atomic import owner
from epvi.run.work_folder import remove_dead
from epvi.wire import envelope

SHARDS = 3
QUICK = epvi.NVI(1, num_starts=2, num_draws=8)
COMMAND = (
    *("fit", "model.py:linear", "--rows", "rows.npz", "--shards", SHARDS, "--components", "1"),
    *("--workers", "1", "--no-certify"),
)
RUN = (*COMMAND, "-o", "posterior.epvi", "--work", "run")

# Writes whole files, but stays in the middle of the given one.
STUCK = """
import os, stat, sys, time
sync, count = os.fsync, 0
def stuck(file):
    global count
    sync(file)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        return  # A folder, which is flushed after its file.
    count += 1
    if count == int(sys.argv[1]):
        os.ftruncate(file, os.fstat(file).st_size // 2)
        time.sleep(300)
os.fsync = stuck
from epvi.cli import main
main(sys.argv[2:], prog_name="epvi")
"""


def make(folder):
    """A folder with a model and rows."""
    (folder / "model.py").write_text(MODEL)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    np.savez(folder / "rows.npz", x=x, y=x @ [1.0, -0.5] + rng.normal(size=60))
    return folder


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The arrays of a run that nobody killed, without a work folder."""
    folder = make(tmp_path_factory.mktemp("undisturbed"))
    ended(started(*COMMAND, "-o", "posterior.epvi", folder=folder))
    return envelope.load(folder / "posterior.epvi").arrays


def stuck_at(write, folder):
    """The run, stuck in the middle of its first, second, ... file; then killed with all its processes."""
    script = [sys.executable, "-c", STUCK, str(write), *map(str, RUN)]
    process = subprocess.Popen(script, cwd=folder, env=environment(), start_new_session=True)
    until(lambda: any(len(whole_files(folder)) == write - 1 for _ in parts(folder)), process)
    kill(process)
    assert parts(folder)


def parts(folder):
    return [*folder.glob(".*.part"), *folder.glob("run/.*.part")]


def whole_files(folder):
    return sorted(folder.glob("run/shard-*.epvi"))


def until(happened, process, seconds=300):
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)


def kill(process):
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)


def go_on(folder, undisturbed):
    """Run again: only what is missing is done, nothing is left behind, and the answer is the same to the last bit."""
    before = {file: os.stat(file) for file in whole_files(folder)}
    for file in before:
        assert isinstance(epvi.load(file), epvi.ShardFit)
    ended(started(*RUN, folder=folder))
    after = {file: os.stat(file) for file in whole_files(folder)}
    assert [file.name for file in after] == [f"shard-{m}-of-{SHARDS}.epvi" for m in range(1, SHARDS + 1)]
    for file, was in before.items():
        assert (after[file].st_ino, after[file].st_mtime_ns) == (was.st_ino, was.st_mtime_ns)
    assert sorted(os.listdir(folder / "run")) == sorted(file.name for file in after)
    found = envelope.load(folder / "posterior.epvi").arrays
    assert found.keys() == undisturbed.keys()
    for name, array in undisturbed.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.slow
@pytest.mark.parametrize("write", [1, 2, 3, 4])
def test_a_run_killed_while_it_writes_goes_on(write, tmp_path, undisturbed):
    """The fourth file is the posterior's."""
    folder = make(tmp_path)
    stuck_at(write, folder)
    assert len(whole_files(folder)) == write - 1
    assert not (folder / "posterior.epvi").exists()
    go_on(folder, undisturbed)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks for processes in /proc")
def test_workers_of_a_run_that_was_killed_alone_end_too(tmp_path):
    folder = make(tmp_path)
    slow = MODEL.replace(
        "    w =", '    import os, time\n    time.sleep(600 * (os.environ.get("NPROC") == "1"))\n    w ='
    )
    (folder / "model.py").write_text(slow)
    process = started(*RUN, folder=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: workers_of(process.pid), process)
    time.sleep(3)  # until the worker is ready
    workers = workers_of(process.pid)
    process.kill()
    process.wait(60)
    deadline = time.monotonic() + 300
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert workers
    assert not any(map(alive, workers))


def alive(process):
    try:
        with open(f"/proc/{process}/stat") as status:
            return status.read().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


def workers_of(parent):
    """The processes that the given one has started to fit shards."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as status, open(f"/proc/{name}/cmdline") as line:
                if status.read().split(")")[1].split()[1] == str(parent) and "epvi.engines.serving" in line.read():
                    found.append(name)
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_a_run_killed_again_and_again_at_any_moment_goes_on(tmp_path, undisturbed):
    folder = make(tmp_path)
    for seconds in np.random.default_rng(0).uniform(0.5, 12, 6):
        process = started(*RUN, folder=folder, start_new_session=True, stdout=None, stderr=None)
        time.sleep(seconds)
        kill(process)
    go_on(folder, undisturbed)


@pytest.mark.slow
def test_an_interrupted_run_says_so_and_goes_on(tmp_path, undisturbed):
    folder = make(tmp_path)
    script = [sys.executable, "-c", STUCK, "2", *map(str, RUN)]
    process = subprocess.Popen(script, cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True)
    until(lambda: parts(folder) and len(whole_files(folder)) == 1, process)
    process.send_signal(signal.SIGINT)
    _, said = ended(process, code=130)
    assert "interrupted. Every file is whole or not there; with --work, run it again to go on." in said
    assert sorted(os.listdir(folder / "run")) == [f"shard-1-of-{SHARDS}.epvi"]
    go_on(folder, undisturbed)


def linear(x, y=None, *, scale=1.0):
    w = numpyro.sample("w", dist.Normal(0.0, scale).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def louder(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 2.0), obs=y)


LINEAR = epvi.Model(linear)


def rows(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(30, 2))
    return {"x": x, "y": x @ [1.0, -0.5] + rng.normal(size=30)}


def run(folder, model=LINEAR, given=None, shards=3, **settings):
    with ThreadPoolExecutor(1) as executor:
        return epvi.fit(
            model,
            rows() if given is None else given,
            shards,
            work=folder,
            executor=executor,
            **{"inference": QUICK, "shuffle": False, "certify": False, **settings},
        )


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    run(folder)
    return folder


OTHERS = {
    "rows": (lambda work: run(work, given=rows(1)), "was made with other rows than this run has"),
    "settings": (lambda work: run(work, inference=epvi.NVI(2)), "was made with other settings than this run has"),
    "a seed": (lambda work: run(work, seed=1), "was made with another seed than this run has"),
    "an order of rows": (lambda work: run(work, shuffle=True), "was made with other rows than this run has"),
    "a prior": (
        lambda work: run(work, epvi.Model(linear, scale=2.0)),
        "was made with other fixed arguments than this run has",
    ),
    "a likelihood": (lambda work: run(work, epvi.Model(louder)), "was made with another model than this run has"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_folder_of_another_run_is_refused(name, work):
    call, sentence = OTHERS[name]
    before = {file: file.read_bytes() for file in work.iterdir()}
    refused(lambda: call(work), f"shard-1-of-3.epvi {sentence}: choose another folder, or empty", 500)
    assert {file: file.read_bytes() for file in work.iterdir()} == before


def test_another_number_of_shards_has_its_own_files(work, tmp_path):
    for file in work.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    run(tmp_path, shards=2)
    assert len(list(tmp_path.iterdir())) == 5
    (tmp_path / "shard-1-of-3.epvi").write_bytes((work / "shard-2-of-3.epvi").read_bytes())
    refused(lambda: run(tmp_path), "shard-1-of-3.epvi is not shard 1 of 3 of this run")


def test_a_damaged_file_is_refused_by_name_with_the_remedy(work, tmp_path):
    for file in work.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    damaged = tmp_path / "shard-2-of-3.epvi"
    damaged.write_bytes(damaged.read_bytes()[:700])
    refused(lambda: run(tmp_path), "shard-2-of-3.epvi is not a usable .epvi file: .*: remove it and run again", 500)
    damaged.unlink()
    again = run(tmp_path)
    np.testing.assert_array_equal(again.mixture.means, run(work).mixture.means)


def test_what_is_no_fit_in_the_folder_is_refused_with_the_remedy_of_the_folder(work, tmp_path):
    for file in work.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    other = tmp_path / "shard-2-of-3.epvi"
    other.write_bytes(b"somebody else's words")
    refused(
        lambda: run(tmp_path), "file: it ends before its header does, or is of another kind: remove it and run", 500
    )
    other.unlink()
    other.mkdir()
    refused(lambda: run(tmp_path), "shard-2-of-3.epvi is not a file: remove it and run again", 500)


def left_by(pid, machine=None):
    """The name that a process of this number gives to what it will remove."""
    return f"{pid}-{machine or owner().partition('-')[2]}-abc"


def test_what_a_dead_run_left_is_removed_also_when_nothing_is_missing(work, tmp_path):
    for file in work.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / f".rows-{left_by(dead.pid)}").mkdir()
    (tmp_path / f".rows-{left_by(dead.pid)}" / "0.npy").write_bytes(b"half")
    (tmp_path / ".shard-1-of-3.epvi.0123.part").write_bytes(b"half")
    run(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(os.listdir(work))
    # Another run is under way: what it writes stays.
    (tmp_path / f".rows-{left_by(os.getppid())}").mkdir()
    (tmp_path / ".shard-1-of-3.epvi.0123.part").write_bytes(b"half")
    run(tmp_path)
    assert len(os.listdir(tmp_path)) == len(os.listdir(work)) + 2


def test_a_folder_that_cannot_be_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    refused(lambda: run(tmp_path / "file"), "file cannot be used as a work folder: File exists", 500)


def test_rows_of_runs_that_were_killed_are_removed_and_those_of_others_stay(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    )
    dead, alive = tmp_path / f"epvi-rows-{left_by(done.stdout.strip())}", tmp_path / f"epvi-rows-{left_by(os.getpid())}"
    # Of another machine that shares the folder, whose processes nobody here can see.
    other = tmp_path / f"epvi-rows-{left_by(done.stdout.strip(), '01234567')}"
    for folder in (dead, alive, other, tmp_path / "epvi-rows-notes"):
        folder.mkdir()
    assert remove_dead(tmp_path, "epvi-rows-")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([alive.name, other.name, "epvi-rows-notes"])
