"""Engines that something happens to, and workers that are killed in the middle of their work."""

import functools
import importlib
import os
import signal
import time

import pytest

from epvi.run import placed_shards
from epvi.run.placed_tasks import answer_placed, fit_batch


def partner(name):
    """A package that an engine needs; the test is skipped without it, or fails where every engine has to be tested."""
    try:
        return importlib.import_module(name)
    except ImportError:
        said = f"{name} is not installed"
        pytest.fail(said) if os.environ.get("EPVI_EVERY_ENGINE") else pytest.skip(said)


class Meddling:
    """An engine to which something happens before it is asked to do a kind of work for the first time, or after it."""

    def __init__(self, engine, name, before=None, after=None):
        self.engine, self.name, self.before, self.after = engine, name, before, after
        self.asked = []
        self.said, self.owns_workers = engine.said, engine.owns_workers
        self.partitions, self.place, self.release = engine.partitions, engine.place, engine.release

    def map(self, task, handles, *, each, name):
        is_first = name == self.name and name not in self.asked
        self.asked.append(name)
        if is_first and self.before is not None:
            self.before()
        yield from self.engine.map(task, handles, each=each, name=name)
        if is_first and self.after is not None:
            self.after()


class Interrupted:
    """An engine whose caller is interrupted when the first result of a kind of work has come."""

    def __init__(self, engine, name):
        self.engine, self.name = engine, name
        self.said, self.owns_workers = engine.said, engine.owns_workers
        self.partitions, self.place, self.release = engine.partitions, engine.place, engine.release

    def map(self, task, handles, *, each, name):
        results = self.engine.map(task, handles, each=each, name=name)
        try:
            for result in results:
                if name == self.name:
                    raise KeyboardInterrupt
                yield result
        finally:
            results.close()


def make_deadly(monkeypatch, folder, name, times=1):
    """Have the worker that fits or scores the second shard be killed in the middle of it, so many times."""
    real = {"fit_batch": fit_batch, "answer_placed": answer_placed}[name]
    monkeypatch.setattr(placed_shards, name, functools.partial(_deadly, real, str(folder), times))


def make_slow(monkeypatch, seconds):
    """Have the fit of the second shard take so much longer."""
    monkeypatch.setattr(placed_shards, "fit_batch", functools.partial(_slow, seconds))


def _deadly(real, folder, times, shared, rows, batch):
    made = real(shared, rows, batch)
    marks = os.listdir(folder)
    if any(part.shard == 2 for part in batch.parts) and len(marks) < times:
        open(os.path.join(folder, f"{len(marks)}"), "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return made


def _slow(seconds, job, rows, batch):
    if any(part.shard == 2 for part in batch.parts):
        time.sleep(seconds)
    return fit_batch(job, rows, batch)


def process_of(seconds):
    """The process that runs this, and no other task meanwhile."""
    time.sleep(seconds)
    return os.getpid()
