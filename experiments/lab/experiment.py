"""An experiment: its cases, the measurement of a case, the figure, and the command that runs them."""

import argparse
import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lab import ROOT
from lab.results import Case, Results, Row

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Said = argparse.Namespace


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The definition of an experiment, for `run`."""

    name: str
    about: str | None  # description for --help
    cases: Callable[[Said], list[Case]]  # empty for a drawing without measurements
    # Prepares what all cases share (rows, a model) and returns the function that measures one case; called only if a
    # case is missing.
    measuring: Callable[[Said], Callable[[Case], list[Row]]]
    draw: Callable[[list[Row], Said], "Figure"]
    report: Callable[[list[Row]], list[str]] = lambda rows: []  # lines to print
    arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None  # adds options
    called: Callable[[Said], str] | None = None  # name of the files, if it depends on the options


def run(experiment: Experiment, words: Sequence[str] | None = None) -> None:
    """The command: measure missing cases, draw, print the report and the names of the files."""
    said = _said(experiment, words)
    name = experiment.called(said) if experiment.called else experiment.name
    results = Results(said.out / f"{name}.csv")
    cases = experiment.cases(said)
    missing = [case for case in cases if case not in results]
    console = Console(highlight=False)
    if missing:
        measure = experiment.measuring(said)
        with _bar(console) as bar:
            task = bar.add_task(name, total=len(cases), completed=len(cases) - len(missing), what="")
            for case in missing:
                what = ", ".join(f"{key} {value}" for key, value in case.items())
                bar.update(task, what=what)
                results.add(case, measure(case))
                bar.advance(task)
                if bar.disable:
                    done = f"{bar.tasks[task].completed:.0f} of {len(cases)} done"
                    console.print(f"{name}: {done} ({what})", soft_wrap=True, markup=False)
    rows = results.of(cases)
    _save(experiment, rows, said, name)
    for line in experiment.report(rows):
        console.print(line, markup=False, soft_wrap=True)
    measured = f"{len(missing)} of {len(cases)} cases measured now; {said.out / name}.csv, .svg, .png"
    # Not wrapped, so that file names can be copied.
    console.print(f"{name}: {measured if cases else f'{said.out / name}.svg, .png'}", soft_wrap=True)


def _said(experiment: Experiment, words: Sequence[str] | None) -> Said:
    parser = argparse.ArgumentParser(description=experiment.about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="the paper's sizes; without it, smaller ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, help="folder for table and figure (reproduced/quick or full)")
    experiment.arguments(parser)
    said = parser.parse_args(words)
    said.out = said.out or ROOT / "reproduced" / ("full" if said.full else "quick")
    return said


def _bar(console: Console) -> Progress:
    """A progress bar on a terminal; one line per case elsewhere, or if several experiments share the terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    lines = not console.is_terminal or "EPVI_LINES" in os.environ
    return Progress(*columns, TextColumn("{task.fields[what]}"), console=console, disable=lines)


def _save(experiment: Experiment, rows: list[Row], said: Said, name: str) -> None:
    from lab.look import save

    save(experiment.draw(rows, said), said.out / name)
