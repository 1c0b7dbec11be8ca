"""A quick fit in worker processes, shards that kill the worker that they run in, and an executor that loses some."""

import functools
import os
import signal
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor

import numpy as np
import numpyro
import numpyro.distributions as dist

import epvi
from epvi.run import shards
from epvi.run.worker import answer_batch, answer_shard, run_batch, run_shard

QUICK = epvi.NVI(1, num_starts=2, num_draws=8)


def line(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def made_rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 2))
    return {"x": x, "y": x @ np.array([1.0, -1.0]) + rng.normal(size=90)}


ROWS = made_rows()


def fitted(executor=2, certify=True, shards=3):
    return epvi.fit(line, ROWS, shards, inference=QUICK, certify=certify, executor=executor)


def mean(_=0):
    """For programs that have other processes fit; a function that these can import."""
    return fitted(certify=False).mixture.mean().tolist()


def same(a, b):
    """Whether two posteriors and their certificates are the same to the last bit."""
    theirs = [(p.mixture.means, p.mixture.roots, p.mixture.log_weights) for p in (a, *a.fits)]
    ours = [(p.mixture.means, p.mixture.roots, p.mixture.log_weights) for p in (b, *b.fits)]
    equal = all(
        np.array_equal(x, y) for one, other in zip(theirs, ours, strict=True) for x, y in zip(one, other, strict=True)
    )
    return equal and str(a.certificate) == str(b.certificate)


def kill_this(folder, shard, times, which):
    """Kill this worker, unless it was done often enough."""
    marks = sorted(name for name in os.listdir(folder) if name.startswith(f"{which}-"))
    if shard == 2 and len(marks) < times:
        open(os.path.join(folder, f"{which}-{len(marks)}"), "w").close()
        os.kill(os.getpid(), signal.SIGKILL)


def deadly(real, folder, when, times, job, part, *rest):
    """Do the work of a shard or a batch in a worker that is killed before it, or before it has said that it is done."""
    shard = 2 if any(one.shard == 2 for one in (part if isinstance(part, tuple) else [part])) else 0
    if when == "before":
        kill_this(folder, shard, times, real.__name__)
    result = real(job, part, *rest)
    if when == "after":
        kill_this(folder, shard, times, real.__name__)
    return result


def make_deadly(monkeypatch, folder, when="before", times=1, fitting=True, scoring=True):
    every = ((run_shard, fitting), (run_batch, fitting), (answer_shard, scoring), (answer_batch, scoring))
    for real, chosen in every:
        if chosen:
            monkeypatch.setattr(shards, real.__name__, functools.partial(deadly, real, str(folder), when, times))


class Losing(Executor):
    """Runs tasks in threads, and loses the worker of one of them, as other people's executors do."""

    def __init__(self, survives, losses=1):
        self._threads, self._losses, self._survives = ThreadPoolExecutor(2), losses, survives

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        if self._losses > 0:
            self._losses -= 1
            future.set_exception(BrokenExecutor("a worker was terminated"))
            return future
        if not self._survives:
            raise BrokenExecutor("a worker was terminated")
        return self._threads.submit(fn, *args, **kwargs)
