"""Strict from the start: shapes are checked, ranks and dtypes are not promoted, and x64 is off, as a user has it."""

import contextlib
import ctypes
import gc
import mmap
import os
import signal
import tempfile
from pathlib import Path

from jaxtyping import install_import_hook

install_import_hook("epvi", "beartype.beartype")
# Not in the user's own cache.
os.environ.setdefault("EPVI_CACHE", os.path.join(tempfile.gettempdir(), f"epvi-tests-{os.getuid()}"))

import jax  # noqa: E402
import jaxlib  # noqa: E402
import jaxtyping  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# XLA's emitters for fused loops, and its splitting of a program for several threads, are most of the time that small
# programs take to compile.
_QUICK_FLAGS = {"xla_cpu_use_fusion_emitters": "false", "xla_cpu_parallel_codegen_split_count": "1"}


# Bytes of memory beyond which a process lets go of what it has compiled after any test: a test needs half a gigabyte
# more at most, and a process is to stay below one and a half.
_MOST_RESIDENT = 900 * 2**20


def _knows(flag):
    """Whether this XLA has the flag: flags come and go, and it ends the process at one that it does not know."""
    for path in Path(jaxlib.__file__).parent.glob("libjax_common*"):
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            # By itself, as the name of a flag: what is gone may still be the name of a field.
            return content.find(b"\0" + flag.encode() + b"\0") >= 0
    return False


def pytest_addoption(parser):
    parser.addoption("--quick-compile", action="store_true", help="compile in a third of the time, for slower programs")


def pytest_configure(config):
    """Before anything is compiled, in this process and, by the environment, in those that it starts."""
    # A shell that runs the tests in the background makes them, and all that they start, ignore interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--quick-compile"):
        os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
        jax.config.update("jax_disable_most_optimizations", True)
        flags = [f"--{name}={value}" for name, value in _QUICK_FLAGS.items() if _knows(name)]
        os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *flags]).strip()
    # What one test file has compiled, the next takes from here. A folder for each process, because JAX may read what
    # another has not finished writing, and would warn.
    name = os.environ.get("PYTEST_XDIST_WORKER", "alone")
    config._compiled = tempfile.TemporaryDirectory(prefix=f"epvi-tests-{name}-")
    jax.config.update("jax_compilation_cache_dir", config._compiled.name)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def pytest_collection_finish():
    """What was imported stays: the collector of garbage need not look at it again and again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config):
    config._compiled.cleanup()


@pytest.fixture(scope="module", autouse=True)
def _without_the_last_files_programs():
    """A process keeps all that it compiles, which would be gigabytes at the end."""
    yield
    _let_go()


def pytest_runtest_logfinish():
    """Between the tests of a file that compiles much, too."""
    with contextlib.suppress(OSError):
        if int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE > _MOST_RESIDENT:
            _let_go()


def _let_go():
    jax.clear_caches()
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


@pytest.fixture
def untyped():
    """As a user has it: without the type checker of the tests, so that epvi's own sentences answer."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
