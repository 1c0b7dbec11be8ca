"""The persistent compilation cache: a folder of the user in which JAX keeps compiled programs between runs.

It is configured by environment variables, which must be set before a process first uses JAX; in the caller's process,
by `kept_programs.py`. A cache that the user has already chosen for JAX is left alone.
"""

import contextlib
import os
from pathlib import Path

# Size of the folder, in bytes (512 MiB), above which the least recently used files are removed until half is left.
# Judgement.
_MOST = 2**29


def cache_folder() -> Path | None:
    """`EPVI_CACHE`, or `epvi` in the user's cache folder; None if `EPVI_CACHE` is "off"."""
    chosen = os.environ.get("EPVI_CACHE")
    if chosen is not None and chosen.strip().lower() in ("", "off"):
        return None
    # Path.home and expanduser raise RuntimeError where the user has no home folder.
    with contextlib.suppress(RuntimeError):
        if chosen is not None:
            return Path(chosen).expanduser()
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "epvi"
    return None


def cache_environment() -> dict[str, str]:
    """Environment variables that turn JAX's cache on; empty if it is off, cannot be written, or was set by the user."""
    folder = cache_folder()
    if folder is None or "JAX_COMPILATION_CACHE_DIR" in os.environ or not can_be_used(folder):
        return {}
    # Keep every program, however small and however fast it compiled: a fit compiles many small ones.
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def can_be_used(folder: Path) -> bool:
    """Whether the folder is there, or could be made, and can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _shrink(folder)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _shrink(folder: Path) -> None:
    """Remove the least recently used files if the folder is too large."""
    files = []
    for path in folder.glob("jit_*"):
        # Another process may have removed the file.
        with contextlib.suppress(OSError):
            status = path.stat()
            files.append((max(status.st_mtime, status.st_atime), status.st_size, path))
    total = sum(size for _, size, _ in files)
    if total <= _MOST:
        return
    for _, size, path in sorted(files):
        path.unlink(missing_ok=True)
        total -= size
        if total <= _MOST // 2:
            return
