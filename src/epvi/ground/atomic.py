"""Writes files atomically: to a temporary file in the same folder, which is flushed and then renamed.

Takes a path and bytes. Owner, group and mode of a replaced file are kept, symbolic links are followed, and temporary
files of killed writers are removed by the next write to the same path.
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

# Characters of the target's name that the temporary file's name begins with. At 4 bytes each in UTF-8, and with about
# 40 bytes of owner and suffix, the name stays below the 255 bytes that file systems allow.
_MOST_NAME = 40
# The end of a temporary file's name: process id, hash of the host's name, random digits.
_PART = re.compile(r"\.([0-9]+-[0-9a-f]{8})-[0-9a-f]{8}\.part")
# Error codes of folders that cannot be opened or flushed (fsync), which is no failure: not every file system can.
_UNFLUSHED = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES)


def write_whole(path: str | os.PathLike, content: bytes) -> Path:
    """Create or replace a file atomically: readers see the old content or the new, also after a crash."""
    path = Path(path)
    try:
        # The target of a symbolic link, whether or not it exists yet.
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
    """The status of the file to be replaced; None if there is none, an error if it is not a regular file."""
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
    # A file that replaces another starts private to this user, until it has the other's group and mode.
    mode = 0o666 if before is None else 0o600
    with open(part, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        if before is not None:
            _take_over(file.fileno(), before)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _take_over(file: int, before: os.stat_result) -> None:
    """Give a file the owner, group and mode of another; if the group cannot be set, group permissions are removed."""
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
    """Flush the folder (fsync), so that the rename itself survives a crash."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if error.errno in _UNFLUSHED:
            # For example, a folder that this user may write to but not read.
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
    """Remove temporary files for this target whose writers, processes of this user on this machine, are dead."""
    prefix = _prefix(target)
    with contextlib.suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            if entry.name.startswith(prefix) and is_left_over(Path(entry.path), prefix):
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)


def is_left_over(path: Path, prefix: str) -> bool:
    """Whether a file with this prefix is the temporary file of a killed write."""
    found = _PART.fullmatch(path.name.removeprefix(prefix))
    return found is not None and is_abandoned(path, found[1])


def owner() -> str:
    """The running process as "pid-host", for names of temporary files: folders may be shared between machines."""
    return f"{os.getpid()}-{_host()}"


def is_abandoned(path: Path, made_by: str) -> bool:
    """Whether a file of this user was made by a process, its `owner()`, that ran on this host and is dead."""
    pid, _, host = made_by.partition("-")
    with contextlib.suppress(OSError):
        return host == _host() and os.lstat(path).st_uid == os.getuid() and not _alive(pid)
    return False


def _alive(pid: str) -> bool:
    if not pid.isdecimal():
        # Not a name that `owner` gives: leave the file alone.
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _host() -> str:
    """A hash of the host's name, since process ids have a meaning on one host only."""
    return f"{zlib.crc32(platform.node().encode()):08x}"
