"""Where a verb may write: looked at before the work, so that none is done in vain and nothing else is lost."""

import glob
import os
from collections.abc import Iterable
from pathlib import Path

from epvi.ground.errors import EpviError

# What a file of each kind holds.
CALLED = {
    "shard": "a shard's fit",
    "posterior": "a posterior",
    "stats": "statistics of columns",
    "draws": "draws to score",
    "scores": "a site's scores",
    "moments": "a site's scores and moments",
}
# What may take each other's place: a site's answer has moments or not, as it was asked.
_ALIKE = {"scores": ("scores", "moments")}


def check_place(path: Path) -> Path:
    """A file that can be written, or replaced."""
    # What a link leads to is replaced.
    folder = Path(os.path.realpath(path)).parent if path.is_symlink() else path.parent
    if path.is_dir():
        raise EpviError(f"{path} is a folder: name a file to write.")
    if path.exists() and not path.is_file():
        raise EpviError(f"{path} is no ordinary file: name a file to write.")
    if not folder.is_dir():
        raise EpviError(f"{path} cannot be written: there is no folder {folder}. Make it first.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise EpviError(f"{path} cannot be written: this user may not write into {folder}.")
    return path


def check_kind(path: Path, kind: str) -> Path:
    """The same for a file of epvi's: what is there already is only replaced when it is of the same kind."""
    check_place(path)
    if not path.exists():
        return path
    from epvi.wire import envelope

    try:
        found = envelope.load(path).kind
    except EpviError:
        found = None
    if found not in _ALIKE.get(kind, (kind,)):
        held = f"holds {CALLED.get(found, found)}" if found else "epvi did not write it"
        raise EpviError(f"{path} is there already and {held}: name another file to write, or remove it.")
    return path


def unnamed(kind: str, shard: int, num_shards: int) -> Path:
    """The file of a shard that the user has not named: shard-3-of-6.epvi, or scores-3-of-6.epvi."""
    return Path(f"{kind}-{shard}-of-{num_shards}.epvi")


def check_unnamed(kind: str, shard: str) -> Path:
    """The file of shard "3/6" that the user has not named, if it can be written."""
    from epvi.site.tasks.fit_shard import parse_shard

    return check_kind(unnamed(kind, *parse_shard(shard)), kind)


def check_apart(path: Path, inputs: Iterable[str]) -> Path:
    """A file that can be written and is none of those that are read."""
    check_place(path)
    read = [file for one in inputs for file in (one, *glob.glob(one), *glob.glob(f"{one}/*.parquet"))]
    for one in read:
        if path.exists() and os.path.exists(one) and os.path.samefile(path, one):
            raise EpviError(f"{path} is read from and would be lost: name another file to write.")
    return path
