"""Groups of one site in a study and on the command line: read as labels, and never written into a file."""

import numpy as np
import pytest
from commands import call, call_json
from sentences import refused

import epvi
from epvi.study.study import load_study

MODEL = """
import numpyro, numpyro.distributions as dist

def recovery(hospital, num_hospital, age, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("hospital", num_hospital):
        a = numpyro.sample("a", dist.Normal(mu, 0.5))
    with numpyro.plate("rows", age.shape[0]):
        numpyro.sample("y", dist.Normal(a[hospital] + slope * age, 0.5), obs=y)
"""
STUDY = """
model = "model.py:recovery"
shards = ["north", "south"]
groups = "hospital"

[arguments]
hospital = "clinic"
age = "age"
y = "weeks"

[inference]
num_components = 1
num_starts = 2
num_draws = 8
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "study.toml").write_text(STUDY)
    rng = np.random.default_rng(0)
    for name, clinics in (("north", ["Aar", "Brig"]), ("south", ["Chur", "Aar", "Engi"])):
        rows = [f"{c},{x},{x / 2 + rng.normal()}" for c, x in zip(clinics * 6, rng.normal(size=18), strict=False)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["clinic,age,weeks", *rows, ""]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_study_with_groups(folder):
    for name in ("north", "south"):
        call("shard", "study.toml", "--rows", f"{name}.csv", "--shard", name, "-o", f"{name}.epvi")
        content = (folder / f"{name}.epvi").read_bytes()
        assert not any(clinic in content for clinic in (b"Aar", b"Brig", b"Chur", b"Engi"))
    said = call("show", "north.epvi").stdout
    assert "hospital; their effects were integrated out where their rows are" in " ".join(said.split())
    call("combine", "north.epvi", "south.epvi", "-o", "posterior.epvi")
    posterior = epvi.load("posterior.epvi")
    assert list(posterior.space.by_name) == ["mu", "slope"]
    study = load_study("study.toml")
    effects = posterior.groups(study.model(), study.rows("south.csv"), num_samples=100)
    assert effects.labels.tolist() == ["Aar", "Chur", "Engi"]
    (folder / "new.csv").write_text("clinic,age\nChur,0.0\nZug,0.0\n")
    arguments = ("predict", "study.toml", "posterior.epvi", "--rows", "new.csv", "--draws", "200", "-o", "new.npz")
    call_json(*arguments, "--given", "south.csv")
    drawn = np.load(folder / "new.npz")["y"]
    assert drawn.shape == (200, 2)
    # Of the new clinic the effect is drawn from its distribution, whose sd is 0.5.
    assert np.std(drawn[:, 1]) > np.std(drawn[:, 0])


def test_the_model_of_a_study_has_the_groups_that_it_names(folder):
    with (folder / "model.py").open("a") as file:
        file.write("\nimport epvi\ndeclared = epvi.Model(recovery, groups='hospital')\n")
    text = STUDY.replace(":recovery", ":declared")
    (folder / "study.toml").write_text(text)
    assert load_study("study.toml").model().groups == "hospital"
    (folder / "study.toml").write_text(text.replace('groups = "hospital"', ""))
    refused(lambda: load_study("study.toml").model(), "the study lacks the groups of model.py:declared")


@pytest.mark.slow
def test_groups_on_the_command_line(folder):
    columns = ("--rows", "north.csv", "--column", "hospital=clinic", "--column", "age=age", "--y", "weeks")
    said = call("shard", "model.py:recovery", *columns, "--groups", "hospital", "--shard", "1/2", "-o", "one.epvi")
    assert "Wrote one.epvi" in said.stdout
    assert epvi.load("one.epvi").made_of.groups == "hospital"
    refused_call = call("shard", "study.toml", "--rows", "north.csv", "--groups", "age", "--shard", "north", code=2)
    assert "--groups" in refused_call.stderr
