"""Alternating runs of methods, each in a process of its own that is killed when a run takes too long.

A racer is a method on a work with a number of shards. All racers with the same method and work share a process, which
makes the rows before the clock starts; it is started anew after it was killed. Every process may use all cores.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np
from scaling_data import Work
from scaling_methods import METHODS, Answer

# Seconds in which a process must import its packages and make its rows, and in which it must end when it is told to.
_READY_SECONDS, _END_SECONDS = 300, 5


class Racer(NamedTuple):
    """A method on a work; `num_shards` is 0 for methods without shards."""

    method: str
    work: Work
    num_shards: int = 0

    def __str__(self) -> str:
        return f"{self.method}, M = {self.num_shards:,}" if self.num_shards else self.method


class Result(NamedTuple):
    """The runs of a racer: their seconds and the last answer, or why there is none."""

    seconds: tuple[float, ...] = ()
    answer: Answer | None = None
    failure: str = ""
    over: float = 0.0  # the limit in seconds, if a run took longer
    compiled: bool = True  # whether an earlier run had warmed up

    @property
    def median(self) -> float:
        """The median of the seconds; the limit, which is a lower bound, for a run that took longer; NaN for none."""
        return float(np.median(self.seconds)) if self.seconds else self.over or float("nan")

    @property
    def said(self) -> str:
        """The time in words."""
        if self.over:
            return f"> {self.over:.0f}"
        return "failed" if not self.seconds else f"{self.median:.3g}{'' if self.compiled else ' cold'}"


class _OverError(Exception):
    """A run took longer than its limit."""


class _Host:
    """The process of a method on a work."""

    def __init__(self, method: str, work: Work, folder: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, method, work, folder))
        self._process.start()
        theirs.close()
        self._is_ready = False
        self.warm: set[Racer] = set()

    def run(self, num_shards: int, limit: float) -> tuple[float, Answer]:
        if not self._is_ready:
            self._receive(_READY_SECONDS)
            self._is_ready = True
        self._pipe.send(num_shards)
        return self._receive(limit)

    def _receive(self, limit: float) -> tuple[float, Answer]:
        """What the process sends; a sentence is an error that it raised."""
        if not self._pipe.poll(limit):
            raise _OverError
        try:
            got = self._pipe.recv()
        except EOFError:
            raise RuntimeError("its process died.") from None
        if isinstance(got, str):
            raise RuntimeError(got)
        return got

    def end(self) -> None:
        """Ask it to end; kill it and all that it started if it does not."""
        with contextlib.suppress(OSError):
            self._pipe.send(None)
        self._process.join(_END_SECONDS)
        if self._process.is_alive():
            self.kill()

    def kill(self) -> None:
        assert self._process.pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()  # if it has no group of its own yet
        self._process.join()


class Race:
    """`with Race(repeats, limit) as race:` `race.run(racers)` gives their results; processes live until the end."""

    def __init__(self, repeats: int, limit: float) -> None:
        self._repeats, self._limit = repeats, limit
        self._hosts: dict[tuple[str, Work], _Host] = {}

    def __enter__(self) -> "Race":
        # The files of a process that was killed are removed with this folder.
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        return self

    def __exit__(self, *error: object) -> None:
        for host in self._hosts.values():
            host.end()
        self._hosts.clear()
        self._folder.cleanup()

    def run(self, racers: Iterable[Racer]) -> dict[Racer, Result]:
        """Warm up every racer, then run all of them in turn, several times; the medians are of these rounds.

        A racer is run again only while that can be expected to end within the limit for all its runs together; if it
        cannot even once, its first run counts, which is cold.
        """
        found, spent = {}, {}
        for racer in racers:
            found[racer] = self._turn(racer, Result(), warm=False)
            spent[racer] = sum(found[racer].seconds)
            # So that somebody who waits sees what is done.
            print(f"  {racer.work}, {racer}: {found[racer].said}", file=sys.stderr, flush=True)
        for _ in range(self._repeats):
            for racer in self._again(found, spent):
                before = found[racer] if found[racer].compiled else Result()
                found[racer] = self._turn(racer, before)
                spent[racer] += sum(found[racer].seconds[-1:])
        return found

    def _again(self, found: Mapping[Racer, Result], spent: Mapping[Racer, float]) -> list[Racer]:
        can = [racer for racer, result in found.items() if result.seconds and not METHODS[racer.method].once]
        return [racer for racer in can if spent[racer] + found[racer].seconds[-1] <= self._limit]

    def _turn(self, racer: Racer, before: Result, *, warm: bool = True) -> Result:
        """The result with one more run, before which another one warms up, unless it did or `warm` is false."""
        place = racer.method, racer.work
        limit = METHODS[racer.method].limit or self._limit
        try:
            host = self._hosts[place] = self._hosts.get(place) or _Host(*place, self._folder.name)
            if warm and racer not in host.warm:
                host.run(racer.num_shards, limit)  # the process was started anew
            seconds, answer = host.run(racer.num_shards, limit)
            host.warm.add(racer)
            if METHODS[racer.method].once:
                self._hosts.pop(place).end()
            return Result((*before.seconds, seconds), answer, compiled=warm)
        except _OverError:
            self._hosts.pop(place).kill()
            return Result(over=limit, failure=f"took longer than {limit:g} s")
        except (RuntimeError, OSError) as error:
            if place in self._hosts:
                self._hosts.pop(place).kill()
            return Result(failure=str(error))


def _serve(pipe: Connection, method: str, work: Work, folder: str) -> None:
    """Run the method as often as a number of shards comes, until None does or the other process ends."""
    os.setsid()  # so that all processes that it starts can be killed with it
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
    tempfile.tempdir = os.environ["TMPDIR"] = folder
    try:
        run = METHODS[method].prepare(work)
    except Exception as error:
        pipe.send(_sentence(error))
        return
    pipe.send((0.0, None))
    while (num_shards := _received(pipe)) is not None:
        try:
            start = time.perf_counter()
            raw = run(num_shards)
            seconds = time.perf_counter() - start
            pipe.send((seconds, METHODS[method].answer(work, raw)))
        except Exception as error:
            pipe.send(_sentence(error))


def _received(pipe: Connection) -> int | None:
    try:
        return pipe.recv()
    except EOFError:
        return None


def _sentence(error: Exception) -> str:
    if isinstance(error, ImportError):
        return f"{error.name} is not installed: pip install 'epvi[bench]'"
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def failures(found: Mapping[Racer, Result]) -> list[str]:
    """A sentence for each failure."""
    return [f"{racer} on {racer.work}: {result.failure}" for racer, result in found.items() if result.failure]
