"""A folder of finished shard fits, from which an interrupted run is resumed.

Takes the shards of a run; gives the fits that are in the folder, and writes each new one when it is finished. A fit is
used again only if its model, rows, settings and seed are those of the run; otherwise the run is refused.
"""

import contextlib
import dataclasses
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from epvi.files import load
from epvi.ground.atomic import is_abandoned, owner
from epvi.ground.errors import EpviError
from epvi.site.tasks.fit_shard import FitPlan
from epvi.wire.envelope import UnusableFileError
from epvi.wire.shard_fit import Part, Provenance, ShardFit, describe_provenance

# Relative and absolute difference up to which values of a model, computed on two machines, are the same: about a
# hundred times the rounding of float32, in which rows may be. Judgement.
_SAME = 1e-5
# What differs, in words. Causes come before effects, since the first difference is named: another seed shuffles the
# rows, other columns change the values of the model.
_SAID = {
    "key": "another seed",
    "inference": "other settings",
    "fixed": "other fixed arguments",
    "groups": "other groups",
    "columns": "other columns",
    "levels": "other levels of a column",
    "standardised": "other constants to standardise with",
    "model": "another model",
    "prior_values": "another model",
    "row_values": "another model",
    "rows": "other rows",
}
# Entries that are computed: they may differ by rounding between machines.
_COMPUTED = ("prior_values", "row_values")


@dataclasses.dataclass(frozen=True)
class WorkFolder:
    """The folder to which a run writes its fits."""

    path: Path

    def within(self, name: str) -> "WorkFolder":
        """A folder in it, for fits of the same shards in another way."""
        return WorkFolder(self.path / name)

    def file(self, part: Part) -> Path:
        """The file of a shard's fit."""
        width = len(str(part.num_shards))
        return self.path / f"shard-{part.shard:0{width}d}-of-{part.num_shards}.epvi"

    def fit_of(self, part: Part, plan: FitPlan, rows: Callable[[], str]) -> ShardFit | None:
        """The shard's fit if its file exists; refused if its run, or the hash of its rows, is another."""
        file = self.file(part)
        if not file.exists():
            return None
        try:
            found = load(file)
        except UnusableFileError as error:
            raise EpviError(f"{error.what}: remove it and run again.") from error
        expected = dataclasses.replace(plan.provenance(), rows=rows())
        if not isinstance(found, ShardFit) or (found.shard, found.prior) != (part.shard, part.prior):
            raise EpviError(f"{file} is not shard {part.label} of this run: {_REMEDY}")
        other = _other(found.made_of, expected)
        if other is not None:
            raise EpviError(f"{file} was made with {_SAID[other]} than this run has: {_REMEDY}")
        return dataclasses.replace(found, label=part.label)

    def keep(self, fit: ShardFit) -> None:
        """Write a finished fit."""
        fit.save(self.file(Part(fit.shard, fit.num_shards, fit.label, fit.prior)))

    def tidy(self) -> None:
        """Create the folder, and remove what killed runs have left in it: rows, and unfinished files."""
        with _reported(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            if not remove_dead(self.path, ".rows-"):
                for left in self.path.glob(".shard-*.part"):
                    left.unlink(missing_ok=True)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A context with a temporary folder for the rows."""
        with _reported(self.path):
            folder = Path(tempfile.mkdtemp(prefix=f".rows-{owner()}-", dir=self.path))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


_REMEDY = "choose another folder, or empty this one."


def _other(found: Provenance, expected: Provenance) -> str | None:
    """The first entry of `_SAID` in which two provenances differ, or None; the version of epvi does not matter."""
    a, b = describe_provenance(found), describe_provenance(expected)
    return next((name for name in _SAID if not _same(a[name], b[name], near=name in _COMPUTED)), None)


def _same(a: Any, b: Any, near: bool) -> bool:
    """Whether two entries are equal; lists equal tuples, and with `near` numbers may differ by rounding."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[name], b[name], near) for name in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(_same(x, y, near) for x, y in zip(a, b, strict=True))
    if near and isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=_SAME, abs_tol=_SAME)
    return a == b


def remove_dead(folder: Path, prefix: str) -> bool:
    """Remove the temporary folders of killed runs; gives whether any of running ones remain."""
    found = [path for path in folder.glob(f"{prefix}*") if path.is_dir()]
    dead = [path for path in found if is_abandoned(path, path.name.removeprefix(prefix).rpartition("-")[0])]
    for path in dead:
        shutil.rmtree(path, ignore_errors=True)
    return len(dead) < len(found)


@contextlib.contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EpviError(f"{path} cannot be used as a work folder: {error.strerror or error}.") from error
