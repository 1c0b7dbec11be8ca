"""epvi in programs with processes of their own: forks, daemonic workers, other pools, strict warnings, no /dev/shm."""

import pytest
from commands import in_a_process

_BEGIN = """
import os, sys, warnings
import numpy as np
import epvi
from deadly_workers import fitted, mean, same
"""

_FORK = """
before = fitted(certify=False)
pids = epvi.engines.local.workers(2).pids
child = os.fork()
if child == 0:
    for verb in (fitted, lambda: before.sample(3, seed=0), lambda: epvi.combine(before.fits)):
        try:
            verb()
        except epvi.EpviError as error:
            print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
# The workers are those of before, which the child let go.
print(same(before, fitted(certify=False)), pids == epvi.engines.local.workers(2).pids)
"""


@pytest.mark.slow
def test_a_fork_after_use_is_refused_in_a_sentence_and_leaves_the_parent_its_workers():
    *refused, after = in_a_process(_BEGIN + _FORK, "-W", "ignore").splitlines()
    assert len(refused) == 3
    assert all(said.startswith("this process was forked from one in which JAX had") for said in refused)
    assert after == "True True"


# Forked before anything is computed: such processes are daemonic, and may have no children of multiprocessing's.
_DAEMONS = """
import multiprocessing
with multiprocessing.get_context("{how}").Pool(2) as others:
    got = others.map(mean, range(2))
print(got[0] == got[1], np.allclose(got[0], mean(), rtol=1e-12))
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fork", "forkserver"])
def test_a_fit_inside_a_daemonic_process_works(how):
    code = _BEGIN + _DAEMONS.format(how=how)
    assert in_a_process(code, "-W", "ignore").splitlines() == ["True True"]


_JOBLIB = """
import joblib
got = joblib.Parallel(n_jobs=2)(joblib.delayed(mean)() for _ in range(3))
print(all(np.allclose(one, mean(), rtol=1e-12) for one in got))
"""


@pytest.mark.slow
def test_a_fit_inside_joblib_works():
    pytest.importorskip("joblib")
    assert in_a_process(_BEGIN + _JOBLIB, "-W", "ignore").splitlines() == ["True"]


# As where /dev/shm is missing or not writable: no semaphore can be made.
_NO_SEMAPHORES = """
import _multiprocessing
class Refuses:
    SEM_VALUE_MAX = 2**31 - 1
    def __new__(cls, *args):
        raise FileNotFoundError(2, "No such file or directory")
    _rebuild = None
_multiprocessing.SemLock = Refuses
"""

_SHAPES = """
for d in range(2, 2 + {number}):
    x = np.random.default_rng(d).normal(size=(40, d))
    posterior = epvi.fit(line, {{"x": x, "y": x.sum(1)}}, 2, inference=QUICK, executor=2)
    assert posterior.mixture.dim == d
print("done")
"""

_ANY_WIDTH = """
import numpyro, numpyro.distributions as dist
QUICK = epvi.NVI(1, num_starts=2, num_draws=8)
def line(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)
"""


@pytest.mark.parametrize("number", [1, pytest.param(40, marks=pytest.mark.slow)])
def test_no_semaphores_and_warnings_as_errors_do_not_disturb(number):
    code = _NO_SEMAPHORES + "import os, numpy as np, epvi\n" + _ANY_WIDTH + _SHAPES.format(number=number)
    assert in_a_process(code, "-W", "error", timeout=3000).splitlines() == ["done"]
