"""Writing a file whole or not at all: under a temporary name beside it, and then renamed.

Takes a path and bytes. Who may read the file stays as it was, a link goes on leading to it, and what a killed write
has left behind is removed by the next one to the same file.
"""

import contextlib
import errno
import os
import platform
import re
import secrets
import stat
import zlib
from pathlib import Path

from epvi.ground.errors import EpviError

# Characters of the file's name in that of its part: in all at most 4 x 40 + 40 bytes, where systems allow 255.
_MOST_NAME = 40
_PART = re.compile(r"\.([0-9]+-[0-9a-f]{8})-[0-9a-f]{8}\.part")
# What folders say that cannot be flushed, which some file systems cannot.
_UNFLUSHED = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES)


def write_whole(path: str | os.PathLike, content: bytes) -> Path:
    """Write a file, or replace it: a reader finds the old one or the new one, also after a crash."""
    path = Path(path)
    try:
        # Where the file is that a link leads to, also when that is not there yet.
        target = Path(os.path.realpath(path))
        before = _status(target)
        _remove_leftovers(target)
        part = target.with_name(f"{_prefix(target)}.{owner()}-{secrets.token_hex(4)}.part")
        try:
            _write(part, content, before)
            os.replace(part, target)
        finally:
            with contextlib.suppress(OSError):
                part.unlink()
        _flush_folder(target.parent)
    except OSError as error:
        raise EpviError(f"{path} cannot be written: {error.strerror or error}.") from error
    return path


def _status(target: Path) -> os.stat_result | None:
    """The file that will be replaced, if there is one."""
    try:
        status = os.stat(target)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(status.st_mode):
        raise EpviError(f"{target} is a folder: name a file to write.")
    if not stat.S_ISREG(status.st_mode):
        raise EpviError(f"{target} is no ordinary file: name a file to write.")
    return status


def _write(part: Path, content: bytes, before: os.stat_result | None) -> None:
    # A file that replaces another is nobody else's to read before it has that one's group and mode.
    mode = 0o666 if before is None else 0o600
    with open(part, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        if before is not None:
            _take_over(file.fileno(), before)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _take_over(file: int, before: os.stat_result) -> None:
    """Give a file the owner, group and mode of another; a group that cannot be given gets no rights."""
    mode = stat.S_IMODE(before.st_mode) & 0o777
    now = os.fstat(file)
    if now.st_uid != before.st_uid:
        with contextlib.suppress(PermissionError):
            os.fchown(file, before.st_uid, -1)
    if now.st_gid != before.st_gid:
        try:
            os.fchown(file, -1, before.st_gid)
        except PermissionError:
            mode &= ~0o070
    os.fchmod(file, mode)


def _flush_folder(folder: Path) -> None:
    """Have the new name on the disk, too."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if error.errno in _UNFLUSHED:
            # A folder that may be written into and not read.
            return
        raise
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in _UNFLUSHED:
            raise
    finally:
        os.close(opened)


def _prefix(target: Path) -> str:
    return f".{target.name[:_MOST_NAME]}"


def _remove_leftovers(target: Path) -> None:
    """Remove parts of this file whose writers are gone: this user's, of this machine."""
    prefix = _prefix(target)
    with contextlib.suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            if entry.name.startswith(prefix) and is_left_over(Path(entry.path), prefix):
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)


def is_left_over(path: Path, prefix: str) -> bool:
    """Whether a file of this prefix is the part of a write that was killed."""
    found = _PART.fullmatch(path.name.removeprefix(prefix))
    return found is not None and is_abandoned(path, found[1])


def owner() -> str:
    """The number and the machine of this process, in the name of what it will remove: folders may be shared."""
    return f"{os.getpid()}-{_host()}"


def is_abandoned(path: Path, made_by: str) -> bool:
    """Whether it is this user's, and the process of this machine that made it, its `owner()`, is gone."""
    pid, _, host = made_by.partition("-")
    with contextlib.suppress(OSError):
        return host == _host() and os.lstat(path).st_uid == os.getuid() and not _alive(pid)
    return False


def _alive(pid: str) -> bool:
    if not pid.isdecimal():
        # Not a file of ours.
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _host() -> str:
    """Which machine it is, of those that share a folder: each has its own processes."""
    return f"{zlib.crc32(platform.node().encode()):08x}"
