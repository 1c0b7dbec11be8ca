"""Where compiled programs are kept, and when they are not."""

import ast
import os
import subprocess
import sys

import pytest

from epvi.engines import compile_cache as cache


def test_the_folder_is_chosen_by_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("EPVI_CACHE", str(tmp_path / "mine"))
    assert cache.cache_environment()["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path / "mine")
    assert (tmp_path / "mine").is_dir()
    monkeypatch.delenv("EPVI_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert cache.cache_folder() == tmp_path / "caches" / "epvi"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_folder() == tmp_path / ".cache" / "epvi"


@pytest.mark.parametrize("off", ["off", "OFF", "", " "])
def test_it_can_be_switched_off(monkeypatch, off):
    monkeypatch.setenv("EPVI_CACHE", off)
    assert cache.cache_environment() == {}


def test_a_cache_that_the_user_chose_for_jax_stays(monkeypatch, tmp_path):
    monkeypatch.setenv("EPVI_CACHE", str(tmp_path))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/somewhere")
    assert cache.cache_environment() == {}


def test_without_a_place_to_write_there_is_no_cache(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EPVI_CACHE", str(tmp_path / "file" / "below"))
    assert cache.cache_environment() == {}


def test_what_was_not_used_for_longest_goes_first(monkeypatch, tmp_path):
    monkeypatch.setenv("EPVI_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "_MOST", 1000)
    for i in range(20):
        (tmp_path / f"jit_{i}-cache").write_bytes(bytes(100))
        os.utime(tmp_path / f"jit_{i}-cache", (i, i))
    (tmp_path / "somebody's").write_bytes(bytes(5000))
    cache.cache_environment()
    assert sorted(path.name for path in tmp_path.glob("jit_*")) == sorted(f"jit_{i}-cache" for i in range(15, 20))
    assert (tmp_path / "somebody's").exists()


_CORES = """
import os, time
from epvi.engines import local as pool

def ask(_):
    time.sleep(0.3)
    return os.getpid(), sorted(os.sched_getaffinity(0))

print(dict(pool.workers(2).map(ask, range(8))))
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be chosen here")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core")
def test_workers_have_a_core_each():
    """One that no other worker has; where others have taken the cores, such as other tests' workers, none."""
    ran = subprocess.run([sys.executable, "-c", _CORES], capture_output=True, text=True, timeout=120, check=True)
    taken = [one[0] for one in ast.literal_eval(ran.stdout).values() if len(one) == 1]
    assert len(taken) == len(set(taken))
    alone = "import os; from epvi.engines import serving; serving.take_a_core(1); print(len(os.sched_getaffinity(0)))"
    many = "from epvi.engines import serving; [serving.take_a_core(1) for _ in range(64)]"
    held = f"import os; {many}; print(os.getpid())"
    for code in (alone, held):
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True).stdout


_TWICE = """
import numpy as np, epvi
from epvi.models import logistic, simulate_logistic
rows, _ = simulate_logistic(2000, 3, seed=0)
epvi.fit(logistic, rows, 2, executor=1)
"""


@pytest.mark.slow
def test_a_second_run_compiles_nothing_again(tmp_path):
    environment = os.environ | {"EPVI_CACHE": str(tmp_path)}
    made = []
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, "-c", _TWICE], env=environment, capture_output=True, text=True, timeout=300, check=True
        )
        assert ran.stderr == ""
        made.append({path.name for path in tmp_path.glob("*-cache")})
    assert made[0]
    assert made[0] == made[1]


def test_a_cache_in_the_home_of_nobody_is_none(monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("EPVI_CACHE", "~nobody-has-this-name/cache")
    assert cache.cache_environment() == {}
