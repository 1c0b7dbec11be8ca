"""A study comes from others: alone it runs nothing, and what runs beside it is told first."""

import hashlib
import os
import sys

import numpy as np
import pytest
from commands import MODEL, call, ended, started
from sentences import refused

from epvi.study.references import study_model
from epvi.study.study import load_study

STUDY = """
model = {model!r}
shards = ["north"]

[arguments]
x = ["a", "b"]
y = "y"
"""
ROWS = "a,b,y\n1,2,3\n2,1,4\n0,1,1\n1,0,2\n"
# Whoever imports or calls this leaves a mark.
HOSTILE = "open('marker', 'w').close()\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A site's folder: rows, and nothing else of its own."""
    here = tmp_path / "site"
    here.mkdir()
    (here / "rows.csv").write_text(ROWS)
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return here


def write_study(folder, model, more=""):
    (folder / "study.toml").write_text(STUDY.format(model=model) + more)


OF_STUDY = ("shard", "study.toml", "--rows", "rows.csv", "--shard", "north", "-o", "n.epvi")


def test_a_study_alone_runs_no_command_at_a_site(folder):
    """The whole of it, in a process of its own: `timeit` would run what `setup` says."""
    fixed = '\n[fixed]\nsetup = "import os; os.system(\'touch marker\')"\nstmt = "0"\nnumber = 1\n'
    write_study(folder, "timeit:timeit", fixed)
    said = ended(started(*OF_STUDY, folder=folder), code=1)[1]
    assert "'timeit:timeit' in the study names an installed module, which a study may not run" in said
    assert sorted(os.listdir(folder)) == ["rows.csv", "study.toml"]


@pytest.mark.parametrize(
    "model",
    [
        "timeit:timeit",
        "os:system",
        "builtins:eval",
        "epvi.models:logistic",
        "epvi.study.references:importlib",
        ":f",
        ".:f",
        "marking:f",
    ],
)
def test_a_module_is_run_for_a_study_only_when_that_is_allowed(model, folder, monkeypatch):
    (folder / "marking.py").write_text(HOSTILE + MODEL)
    monkeypatch.syspath_prepend(folder)
    write_study(folder, model)
    refused(load_study("study.toml").model, r"names an installed module.*--allow-module")
    assert not (folder / "marker").exists()
    assert "marking" not in sys.modules


@pytest.mark.parametrize(
    "model", ["np", "__init__", "__builtins__", "simulate_logistic", "grid_places", "models", "_x", "", "logistic.f"]
)
def test_a_ready_model_is_one_of_the_list(model, folder):
    refused(lambda: study_model(model, {}, folder), "there is no ready model")


@pytest.mark.parametrize("model", ["{up}/model.py:linear", "../model.py:linear", "here/../../model.py:linear"])
def test_a_model_file_is_inside_the_folder_of_the_study(model, folder):
    (folder / "here").mkdir()
    (folder.parent / "model.py").write_text(HOSTILE + MODEL)
    model = model.format(up=folder.parent)
    refused(lambda: study_model(model, {}, folder), "leads out of the study's folder")
    assert not (folder / "marker").exists()


@pytest.mark.parametrize("link", ["model.py", "sub"])
def test_a_link_that_leads_out_is_not_followed(link, folder):
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / "model.py").write_text(HOSTILE + MODEL)
    (folder / link).symlink_to(outside / "model.py" if link == "model.py" else outside)
    model = "model.py:linear" if link == "model.py" else "sub/model.py:linear"
    refused(lambda: study_model(model, {}, folder), "leads out of the study's folder")
    assert not (folder / "marker").exists()
    (folder / "own.py").write_text(MODEL)
    (folder / "another.py").symlink_to("own.py")
    assert study_model("another.py:linear", {}, folder).name == "linear"


@pytest.mark.parametrize("place", ["nosuch.py", "pipe.py", "folder.py", "loop.py", "nul\0.py"])
def test_what_is_no_file_is_not_waited_for(place, folder):
    os.mkfifo(folder / "pipe.py")
    (folder / "folder.py").mkdir()
    (folder / "loop.py").symlink_to("loop.py")
    refused(lambda: study_model(f"{place}:f", {}, folder), "there is no file .* beside the study")
    refused(lambda: study_model("logistic", {"a": f"@{place}"}, folder), "there is no file .* beside the study")


def test_programs_of_an_environment_in_the_folder_are_not_the_studys(folder):
    inside = folder / ".venv" / "lib"
    inside.mkdir(parents=True)
    (folder / ".venv" / "pyvenv.cfg").write_text("")
    (inside / "timeit.py").write_text(HOSTILE + MODEL)
    refused(lambda: study_model(".venv/lib/timeit.py:linear", {}, folder), "belongs to an installation of Python")
    assert not (folder / "marker").exists()


def test_the_path_and_the_hash_of_a_model_file_are_told_before_it_runs(folder):
    (folder / "model.py").write_text("import sys\nprint('it runs', file=sys.stderr, flush=True)\n" + MODEL)
    write_study(folder, "model.py:linear")
    said = call(*OF_STUDY).stderr
    digest = hashlib.sha256((folder / "model.py").read_bytes()).hexdigest()
    assert f"epvi: running the model file {folder.resolve()}/model.py, a program (SHA-256 {digest})." in said
    assert said.index(digest) < said.index("it runs")
    # A file that has changed is another one: it is told, and run, again.
    (folder / "model.py").write_text(MODEL + "changed = 1\n")
    digest = hashlib.sha256((folder / "model.py").read_bytes()).hexdigest()
    load_study("study.toml").model()
    assert sys.modules["epvi_model_model"].changed == 1


def test_what_runs_is_what_was_hashed_and_no_compiled_file_beside_it(folder):
    import importlib.util
    import py_compile

    source = folder / "model.py"
    source.write_text(HOSTILE + MODEL)
    # A compiled file that says of itself that it need not be checked.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(source), importlib.util.cache_from_source(str(source)), invalidation_mode=mode)
    source.write_text(MODEL)
    assert study_model("model.py:linear", {}, folder).name == "linear"
    assert not (folder / "marker").exists()


def test_what_a_file_imports_from_elsewhere_is_not_its_model(folder):
    (folder / "helper.py").write_text(MODEL)
    imports = "from subprocess import run\nfrom timeit import timeit\nfrom math import sin\nimport numpy as np\n"
    own = "import functools\nfrom helper import linear\nfrom epvi.models import logistic\n"
    wrapped = "short = functools.partial(linear)\n@functools.wraps(linear)\ndef same(*a, **k):\n    linear(*a, **k)\n"
    (folder / "using.py").write_text(imports + own + wrapped)
    for name in ("run", "timeit", "sin"):
        refused(lambda name=name: study_model(f"using.py:{name}", {}, folder), "is only imported there")
    refused(lambda: study_model("using.py:np.load", {}, folder), "using.py has no 'np.load'")
    refused(lambda: study_model("using.py:np", {}, folder), "is of type module")
    for name in ("linear", "logistic", "short", "same"):
        assert callable(study_model(f"using.py:{name}", {}, folder).function)


def test_two_sites_in_one_process_may_call_their_files_alike(folder, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    for place in (folder, other):
        (place / "model.py").write_text(MODEL)
    models = [study_model("model.py:linear", {}, place) for place in (folder, other, folder)]
    assert models[0].function is models[2].function
    assert models[0].function is not models[1].function


def test_fixed_arguments_are_plain_data_from_inside_the_folder(folder):
    np.save(folder.parent / "secret.npy", np.ones(3))
    np.savez(folder / "several.npz", a=np.ones(3))
    (folder / "object.npy").write_bytes(b"\x93NUMPY\x01\x00")
    np.save(folder / "pickled.npy", np.array([HOSTILE], dtype=object), allow_pickle=True)
    for place in ("../secret.npy", f"{folder.parent}/secret.npy"):
        refused(lambda place=place: study_model("logistic", {"a": f"@{place}"}, folder), "leads out of the study's")
    refused(lambda: study_model("logistic", {"a": "@several.npz"}, folder), "which holds several arrays")
    for place in ("object.npy", "pickled.npy"):
        refused(lambda place=place: study_model("logistic", {"a": f"@{place}"}, folder), "a cannot be read from")
    for name in ("self", "function", "exchangeable"):
        refused(lambda name=name: study_model("logistic", {name: 1}, folder), f"an argument '{name}' cannot be fixed")


def test_a_module_can_be_allowed_and_is_told(folder, monkeypatch):
    (folder / "allowed_models.py").write_text(MODEL)
    monkeypatch.syspath_prepend(folder)
    write_study(folder, "allowed_models:linear")
    assert "--allow-module" in call(*OF_STUDY, code=1).stderr
    said = call(*OF_STUDY, "--allow-module").stderr
    assert "epvi: running the module allowed_models that the study names." in said
    assert load_study("study.toml", allow_module=True).model().name == "linear"
    call("combine", "n.epvi", "-o", "p.epvi")
    assert "--allow-module" in call("predict", "study.toml", "p.epvi", "--rows", "rows.csv", code=1).stderr
    own = ("shard", "allowed_models:linear", "--rows", "rows.csv", "--x", "a,b", "--y", "y", "--shard", "1/1")
    said = call(*own, "--allow-module", code=2).stderr
    assert "Leave --allow-module out: it goes with a study" in said
