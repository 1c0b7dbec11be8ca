"""A model sent to workers: what is taken for the same, and what is imported anew."""

import importlib
import sys

import jax
import numpy as np
import pytest

import epvi
from epvi.site.tasks.sent_model import StaleModelError, model_for, model_of, packed

SOURCE = """
import numpyro
import numpyro.distributions as dist

CALLS = []
LOC = {loc}

def location():
    return LOC

def model(y):
    CALLS.append(1)
    m = numpyro.sample("m", dist.Normal(location(), 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A function that writes a module with this prior mean, and imports it anew."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    name = "edited_models"

    def written(loc):
        (tmp_path / f"{name}.py").write_text(SOURCE.format(loc=loc))
        importlib.invalidate_caches()
        return importlib.reload(sys.modules[name]) if name in sys.modules else importlib.import_module(name)

    before = dict(sys.modules)
    yield written
    sys.modules.update(before)
    sys.modules.pop(name, None)


def prior_mean(model):
    """Where the prior is highest: of Normal(loc, 1), the difference of log densities at 1 and 0 is loc − 1/2."""
    with jax.enable_x64(True):
        target = model.on({"y": np.zeros(20)})
        return float(target.log_prior(np.array([1.0])) - target.log_prior(np.array([0.0]))) + 0.5


def test_a_module_that_was_edited_and_reloaded_is_another_model(module):
    first = model_of(packed(epvi.Model(module(0.0).model)))
    again = model_of(packed(epvi.Model(module(100.0).model)))
    assert prior_mean(again) == pytest.approx(100.0)
    assert again is not first


def test_the_same_module_is_the_same_model_whatever_it_has_counted(module):
    found = module(0.0)
    sent = packed(epvi.Model(found.model))
    found.CALLS.append(1)
    assert model_of(packed(epvi.Model(found.model))) is model_of(sent)


def test_epvis_own_workers_import_an_edited_module_anew_and_others_say_what_to_do(module):
    old = module(0.0)
    new = module(100.0)
    sent = packed(epvi.Model(new.model))
    # As in a worker that has imported the module before it was edited.
    vars(old).update(LOC=0.0)
    model_of.cache_clear()
    with pytest.raises(StaleModelError, match="restart the workers"):
        model_for(sent, own_worker=False)
    assert prior_mean(model_for(sent, own_worker=True)) == pytest.approx(100.0)
