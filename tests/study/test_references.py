"""Models by name: from a file, a module, or ready; and what is said when there is none."""

import sys

import cloudpickle
import numpy as np
import pytest
from commands import MODEL
from sentences import refused

import epvi
from epvi import models
from epvi.models.tlsa import EXCHANGEABLE
from epvi.study.references import READY, model_named


@pytest.fixture(autouse=True)
def _same_path(monkeypatch):
    """A model's folder is put on the path: not for other tests."""
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_ready_models_are_those_of_the_package():
    functions = {name for name in models.__all__ if not name.startswith("simulate") and name != "grid_places"}
    assert set(READY) == functions
    for name in READY:
        assert model_named(name).function is getattr(models, name)
    assert model_named("tlsa").exchangeable == EXCHANGEABLE
    assert model_named("multinomial", {"num_classes": 3}).fixed == {"num_classes": 3}


def test_a_model_comes_from_a_file_beside_the_study_or_the_user(tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text("scale = 2.0\n")
    (tmp_path / "model.py").write_text(f"import beside\n{MODEL}")
    beside = model_named("model.py:linear", beside=tmp_path)
    assert beside.name == "linear"
    assert sys.modules["beside"].scale == 2.0
    monkeypatch.chdir(tmp_path)
    # The same file is run once.
    assert model_named("model.py:linear").function is beside.function
    assert model_named(f"{tmp_path}/model.py:linear").name == "linear"


def test_a_module_and_a_model_of_the_users_own_are_taken(tmp_path, monkeypatch):
    (tmp_path / "study_models.py").write_text(f"{MODEL}\nimport epvi\nready = epvi.Model(linear)\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert model_named("study_models:linear").name == "linear"
    ready = model_named("study_models:ready")
    assert ready is sys.modules["study_models"].ready
    refused(lambda: model_named("study_models:ready", {"a": 1}), "is a Model with its own fixed arguments")
    assert model_named("epvi.models:poisson").name == "poisson"


def test_what_a_file_defines_travels_to_a_process_without_it(tmp_path, monkeypatch):
    (tmp_path / "travelling.py").write_text(MODEL)
    sent = cloudpickle.dumps(model_named("travelling.py:linear", beside=tmp_path))
    # As in a worker, which never saw the file.
    monkeypatch.delitem(sys.modules, "epvi_model_travelling")
    arrived = cloudpickle.loads(sent)
    rows = {"x": np.ones((4, 2)), "y": np.ones(4)}
    assert arrived.on(rows).space.dim == 2


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        ("logit", "there is no ready model 'logit': write file.py:function, module:function, or one of logistic"),
        ("model.py", "model.py is a file: name the model function in it, as in model.py:logistic"),
        ("study.toml", "study.toml is a study, and here a model is asked for"),
        ("nosuch.py:f", "there is no model file nosuch.py"),
        ("model.py:f", r"model.py has no 'f' \(it has linear\)"),
        ("model.py:", r"model.py has no '' \(it has linear\)"),
        (":f", "the module .. cannot be imported"),
        ("empty.py:f", "empty.py has no 'f': name a NumPyro model function"),
        ("model.py:size", "model.py:size is of type int"),
        ("model.py:dist", "model.py:dist is of type module"),
        ("failing.py:f", r"failing.py cannot be run: ZeroDivisionError \(line 3\): division by zero"),
        ("nosuch.models:f", "the module 'nosuch.models' cannot be imported: ModuleNotFoundError"),
        ("math:sin", "is not an argument of sin: its columns are x"),
    ],
)
def test_what_names_no_model_is_refused(reference, sentence, tmp_path):
    (tmp_path / "model.py").write_text(MODEL + "size = 3\n")
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "failing.py").write_text("import math\n\n1 / 0\n")
    rows = {"x": np.ones((4, 2)), "y": np.ones(4)}
    refused(lambda: model_named(reference, beside=tmp_path).on(rows), sentence)


def test_a_file_that_was_mended_is_run_again(tmp_path):
    file = tmp_path / "mended.py"
    file.write_text("def linear(x\n")
    refused(lambda: model_named("mended.py:linear", beside=tmp_path), "mended.py cannot be run: SyntaxError")
    file.write_text(MODEL)
    assert isinstance(model_named("mended.py:linear", beside=tmp_path), epvi.Model)
