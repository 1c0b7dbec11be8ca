"""Where compiled programs are kept from one run to the next: a folder of the user's.

Gives environment variables for processes that have not begun to use JAX. Whoever has chosen a cache for JAX keeps it.
"""

import contextlib
import os
from pathlib import Path

# When the folder holds more bytes than this, what was not used for longest is removed until half is left.
_MOST = 2**29


def cache_folder() -> Path | None:
    """`EPVI_CACHE`, or `epvi` in the user's cache folder; None when it is "off"."""
    chosen = os.environ.get("EPVI_CACHE")
    if chosen is not None and chosen.strip().lower() in ("", "off"):
        return None
    # There may be no home folder.
    with contextlib.suppress(RuntimeError):
        if chosen is not None:
            return Path(chosen).expanduser()
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "epvi"
    return None


def cache_environment() -> dict[str, str]:
    """What makes JAX keep what it compiles; nothing where that cannot be, or is the user's own business already."""
    folder = cache_folder()
    if folder is None or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _shrink(folder)
    except OSError:
        return {}
    if not os.access(folder, os.W_OK):
        return {}
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def _shrink(folder: Path) -> None:
    files = []
    for path in folder.glob("jit_*"):
        # Another process may have removed it.
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
