"""What the caller compiles is kept while a fit runs, and JAX is configured as before afterwards."""

import os
import subprocess
import sys

import jax

from epvi.engines.kept_programs import kept_programs

_COMPILE = """
import jax
from epvi.engines.kept_programs import kept_programs

names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
before = [getattr(jax.config, name) for name in names]
with kept_programs(), kept_programs():
    jax.jit(lambda x: x + 1)(1.0)
jax.jit(lambda x: x + 2)(1.0)
assert [getattr(jax.config, name) for name in names] == before
"""


def test_programs_are_kept_in_the_context_only(tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment["EPVI_CACHE"] = str(tmp_path)
    ran = [
        subprocess.run([sys.executable, "-c", _COMPILE], env=environment, capture_output=True, text=True, timeout=120)
        for _ in range(2)
    ]
    assert [one.stderr for one in ran] == ["", ""]
    kept = [path.name for path in (tmp_path / "callers").glob("*-cache")]
    assert len([name for name in kept if "lambda" in name]) == 1


def test_a_cache_that_the_user_chose_stays():
    chosen = jax.config.jax_compilation_cache_dir
    assert chosen is not None
    with kept_programs():
        assert jax.config.jax_compilation_cache_dir == chosen
