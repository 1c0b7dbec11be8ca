"""A folder in which a run keeps what it has done, so that a run that was stopped goes on where it was.

Takes the parts of a run; gives the fits that are already there, and writes each new one when it is finished. A fit is
only taken over when it was made of the same model, rows, settings and seed.
"""

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from epvi.errors import EpviError
from epvi.files import load
from epvi.handover import Provenance, ShardFit, describe_provenance
from epvi.site.fingerprint import hash_rows
from epvi.site.rows import Columns
from epvi.site.shard import Part, Plan

_SAID = {"rows": "other rows", "inference": "other settings", "key": "another seed"}


@dataclasses.dataclass(frozen=True)
class WorkFolder:
    """Where a run's fits are written."""

    path: Path

    def file(self, part: Part) -> Path:
        """Where a part's fit is."""
        width = len(str(part.num_shards))
        return self.path / f"shard-{part.shard:0{width}d}-of-{part.num_shards}.epvi"

    def fit_of(self, part: Part, plan: Plan, columns: Columns) -> ShardFit | None:
        """The part's fit if it is there; refused when it is that of another run."""
        file = self.file(part)
        if not file.exists():
            return None
        found = load(file)
        expected = dataclasses.replace(plan.provenance(), rows=hash_rows(columns, plan.hash_key))
        if not isinstance(found, ShardFit) or (found.shard, found.prior) != (part.shard, part.prior):
            raise EpviError(f"{file} is not shard {part.label} of this run: {_REMEDY}")
        other = _other(found.made_of, expected)
        if other is not None:
            raise EpviError(f"{file} was made with {_SAID.get(other, 'another model')} than this run has: {_REMEDY}")
        return dataclasses.replace(found, label=part.label)

    def keep(self, fit: ShardFit) -> None:
        """Write a finished fit."""
        fit.save(self.file(Part(fit.shard, fit.num_shards, fit.label, fit.prior)))

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder for the rows while the run lasts; those of runs that were killed are removed."""
        with _reported(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            for left in self.path.glob(".rows-*"):
                if not _alive(left.name.removeprefix(".rows-")):
                    shutil.rmtree(left, ignore_errors=True)
            folder = self.path / f".rows-{os.getpid()}"
            folder.mkdir(exist_ok=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


_REMEDY = "choose another folder, or remove the file."


def _other(found: Provenance, expected: Provenance) -> str | None:
    """The first thing in which a fit was made of something else; the version of epvi does not matter."""
    a, b = describe_provenance(found), describe_provenance(expected)
    return next((name for name in a if name != "version" and _plain(a[name]) != _plain(b[name])), None)


def _plain(value: object) -> object:
    """Lists for tuples, as a file gives them."""
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value


@contextlib.contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EpviError(f"{path} cannot be used as a work folder: {error.strerror or error}.") from error


def _alive(pid: str) -> bool:
    if not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
