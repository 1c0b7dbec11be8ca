"""One file for a whole study: what it says is what the sites do, and every mistake in it is named."""

import tomllib

import numpy as np
import pytest
from commands import MODEL, call, call_json
from sentences import refused

import epvi
from epvi.files import load_any
from epvi.study.study import load_study

STUDY = """
name = "hearts"
model = "model.py:linear"
shards = ["north", "south", "west"]
min_rows = 12
drop_missing = true
hash_key = "secret"
seed = 3

[arguments]
x = ["age", "chol", "sex"]
y = "num"

[columns.sex]
levels = ["f", "m"]

[columns.num]
unit = "vessels"
limits = [-20, inf]

[inference]
num_components = 1
num_starts = 2
num_draws = 8
"""


def write_rows(path, seed, n=30):
    rng = np.random.default_rng(seed)
    age, chol = rng.normal(55 + seed, 9, n), rng.normal(240, 40, n)
    sex = np.where(rng.uniform(size=n) < 0.5, "f", "m")
    num = 0.3 * (age - 55) / 9 + 0.5 * (sex == "m") + rng.normal(size=n)
    lines = [
        f"{a!r},{c!r},{s},{v!r}" for a, c, s, v in zip(age.tolist(), chol.tolist(), sex, num.tolist(), strict=True)
    ]
    path.write_text("\n".join(["age,chol,sex,num", *lines, "61,NA,m,1.5", ""]))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "study.toml").write_text(STUDY)
    for m, name in enumerate(("north", "south", "west")):
        write_rows(tmp_path / f"{name}.csv", m)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_study_is_read_as_it_is_written(folder):
    study = load_study("study.toml")
    assert (study.name, study.num_shards, study.min_rows, study.seed) == ("hearts", 3, 12, 3)
    assert study.inference == epvi.NVI(1, num_starts=2, num_draws=8)
    assert study.shard("south") == ("2/3", 1 / epvi.wire.shard_fit.Fraction(3), "south")
    assert study.shard("3/3")[2] == "west"
    rows = study.rows("north.csv").read()
    assert rows.num_rows == 30
    assert rows.columns["x"].shape == (30, 3)
    assert rows.levels == {"sex": ("f", "m")}
    assert rows.hash_key == "secret"


def test_constants_are_pooled_first_and_then_all_sites_standardise_with_them(folder):
    for name in ("north", "south", "west"):
        said = call("stats", "study.toml", "--rows", f"{name}.csv", "-o", f"{name}.stats.epvi").stdout
        assert "That is all that is in it." in said
    # What is observed keeps its unit, and levels have none.
    assert list(load_any("north.stats.epvi").columns) == ["age", "chol"]
    lines = call("pool", *(f"{name}.stats.epvi" for name in ("north", "south", "west"))).stdout
    with open("study.toml", "a") as study:
        study.write(lines)
    study = load_study("study.toml")
    every = [study.rows(f"{name}.csv").read() for name in ("north", "south", "west")]
    x = np.concatenate([rows.columns["x"][:, :2] for rows in every])
    np.testing.assert_allclose(np.mean(x, axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(np.std(x, axis=0), 1, rtol=1e-12)
    assert all(rows.standardised == every[0].standardised for rows in every)
    # The constants are in the units of the source, also when the study has some already.
    again = call_json("stats", "study.toml", "--rows", "north.csv", "-o", "again.epvi")["columns"]
    assert again == load_any("north.stats.epvi").as_json()
    # Pasted twice, or beside what is there, they are refused with the remedy.
    with open("study.toml", "a") as study:
        study.write(lines)
    refused(lambda: load_study("study.toml"), r"study.toml is not TOML: .*twice.*: put all of it under one heading")


def test_a_name_that_is_no_toml_key_is_quoted(folder):
    rows = {name: np.arange(20.0) for name in ("a b", 'c"d', "é", "e.f", "g\\h")}
    np.savez("odd.npz", **rows)
    call("stats", "--rows", "odd.npz", "-o", "odd.epvi")
    assert list(tomllib.loads(call("pool", "odd.epvi").stdout)["columns"]) == list(rows)


def test_a_missing_site_is_stood_in_for_and_comes_late(folder):
    """Its stand-in needs no rows; when the site's own file comes, it takes the place of the stand-in."""
    lines = "[columns.age]\ncentre = 55.0\nscale = 9.0\n[columns.chol]\ncentre = 240.0\nscale = 40.0\n"
    (folder / "study.toml").write_text(STUDY + lines)
    study = load_study("study.toml")
    for name in ("north", "south"):
        study.fit(f"{name}.csv", name).save(f"{name}.epvi")
    made = call_json("shard", "study.toml", "--no-rows", "--shard", "west", "-o", "west.epvi")
    assert (made["num_rows"], made["label"], made["prior"]) == (0, "3 of 3 (west)", "1/3")
    assert "no rows (it stands in for a missing site)" in call("show", "west.epvi").stdout
    early = call_json("combine", "north.epvi", "south.epvi", "west.epvi", "-o", "posterior.epvi")
    assert early["num_rows"] == 60
    late = call_json("shard", "study.toml", "--rows", "west.csv", "--shard", "3/3", "-o", "late.epvi")
    assert (late["num_rows"], late["made_of"]["study"]) == (30, "hearts")
    updated = call_json("combine", "posterior.epvi", "late.epvi", "-o", "posterior.epvi")
    assert updated["num_rows"] == 90
    combined = call_json("combine", "north.epvi", "south.epvi", "late.epvi", "--check")
    assert updated["parameters"] == combined["parameters"]
    # And the exact answer, since all is Gaussian.
    every = [study.rows(f"{name}.csv").read().columns for name in ("north", "south", "west")]
    x, y = (np.concatenate([rows[name] for rows in every]) for name in "xy")
    expected = np.linalg.solve(np.eye(3) + x.T @ x, x.T @ y)
    np.testing.assert_allclose(epvi.load("posterior.epvi").mixture.mean(), expected, rtol=1e-8)
    # Once more, it is refused: its rows would count twice.
    said = call_json("combine", "posterior.epvi", "late.epvi", "-o", "twice.epvi", code=1)["error"]
    assert "twice" in said
    # The rows are predicted with the study's columns and units.
    scored = call_json("predict", "study.toml", "posterior.epvi", "--rows", "west.csv", "--draws", "20")
    assert scored["sites"] == {"y": [30]}
    assert scored["dropped"] == 1
    assert -5 < scored["log_predictive"] < 0
    (folder / "new.csv").write_text("age,chol,sex\n50,200,m\n60,210,f\n")
    new = call_json("predict", "study.toml", "posterior.epvi", "--rows", "new.csv", "-o", "predicted.parquet")
    assert new["sites"] == {"y": [2]}
    assert "log_predictive" not in new


def test_few_rows_are_not_told_of(folder):
    table = (folder / "north.csv").read_text().splitlines()
    (folder / "few.csv").write_text("\n".join([*table[:12], table[-1], ""]))
    said = call_json("shard", "study.toml", "--rows", "few.csv", "--shard", "north", "-o", "north.epvi", code=1)[
        "error"
    ]
    assert "11 rows" in said
    assert "study.toml asks for at least 12 (min_rows)" in said
    assert not (folder / "north.epvi").exists()
    said = call_json("stats", "study.toml", "--rows", "few.csv", "-o", "north.stats.epvi", code=1)["error"]
    assert "column 'age' has 11 values, fewer than 12" in said
    # A study that asks for nothing is no reason to tell of single rows.
    (folder / "study.toml").write_text(STUDY.replace("min_rows = 12", ""))
    (folder / "few.csv").write_text("\n".join([*table[:9], ""]))
    refused(lambda: load_study("study.toml").stats("few.csv"), "column 'age' has 8 values, fewer than 10")


REFUSED_ROWS = {
    "a level": ("age,chol,sex,num\n" + "1,2,x,3\n" * 12, "has the value 'x', which is not among its levels"),
    "a value": ("age,chol,sex,num\n" + "1,2,f,-30\n" * 12, "column 'num' .*has 12 values below -20, its limits"),
    "a column": ("age,chol,num\n" + "1,2,3\n" * 12, "has no column 'sex'"),
    "no row left": ("age,chol,sex,num\n" + "1,NA,f,3\n" * 12, "no row of .* is left: all 12 lack a value"),
}


@pytest.mark.parametrize("name", REFUSED_ROWS)
def test_rows_that_the_study_does_not_take_are_refused(name, folder):
    text, sentence = REFUSED_ROWS[name]
    (folder / "rows.csv").write_text(text)
    refused(lambda: load_study("study.toml").rows("rows.csv").read(), sentence)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("--rows", "north.csv", "--shard", "nort"),
            "study.toml has no shard 'nort': write 3/3 or one of north, south",
        ),
        (
            ("--rows", "north.csv", "--shard", "1/4"),
            "shard is '1/4', but study.toml has 3 shards: write one of north, south, west",
        ),
        (("--rows", "north.csv", "--shard", "4/3"), "study.toml has no shard '4/3'"),
        (("--rows", "north.csv", "--shard", "1/3", "--prior", "3/2"), "prior is '3/2'"),
    ],
)
def test_a_wrong_shard_of_a_study_is_refused(arguments, sentence, folder):
    assert sentence in call_json("shard", "study.toml", *arguments, "-o", "new.epvi", code=1)["error"]


@pytest.mark.parametrize(
    ("verb", "option"),
    [
        *(("shard", one) for one in (("--x", "age"), ("--y", "num"), ("--seed", "3"), ("--components", "2"))),
        *(("stats", one) for one in (("--x", "age"), ("--min-rows", "3"), ("--drop-missing",))),
        *(("predict", one) for one in (("--x", "age"), ("--set", "a=1"))),
    ],
)
def test_what_the_study_settles_cannot_be_said_again(verb, option, folder):
    rest = {
        "shard": ("study.toml", "--shard", "1/3", "-o", "new.epvi"),
        "stats": ("study.toml", "-o", "new.epvi"),
        "predict": ("study.toml", "posterior.epvi"),
    }[verb]
    said = call_json(verb, *rest, "--rows", "north.csv", *option, code=2)["error"]
    assert said == f"Leave {option[0]} out: study.toml settles it, or should."


BAD = {
    "no TOML": ("name = ", "study.toml is not TOML: "),
    "an unknown entry": ("modle = 'm.py:f'\n" + STUDY, "modle in study.toml is not known .*write 'model'"),
    "another unknown entry": ("xyz = 1\n" + STUDY, "xyz in study.toml is not known .*there are arguments, columns"),
    "no model": (STUDY.replace('model = "model.py:linear"', ""), "model in study.toml is missing"),
    "a model that is no text": (STUDY.replace('"model.py:linear"', "3"), "model in study.toml is not a text"),
    "no shards": (STUDY.replace('shards = ["north", "south", "west"]', ""), "shards in study.toml are missing"),
    "shards that are a number": (STUDY.replace('["north", "south", "west"]', "3"), "shards in study.toml are missing"),
    "a shard twice": (STUDY.replace('"south"', '"north"'), "shards in study.toml name one site twice"),
    "shares that are not one": (
        STUDY.replace('["north", "south", "west"]', '{north = "1/3", south = "1/3"}'),
        "shards in study.toml have shares of the prior that sum to 2/3, not to 1",
    ),
    "a share that is none": (
        STUDY.replace('["north", "south", "west"]', '{north = "all"}'),
        "study.toml: .*prior is 'all'",
    ),
    "min_rows below one": (STUDY.replace("min_rows = 12", "min_rows = 0"), "study.toml: min_rows is 0"),
    "min_rows that is text": (STUDY.replace("min_rows = 12", 'min_rows = "12"'), "study.toml: min_rows is '12'"),
    "a negative seed": (STUDY.replace("seed = 3", "seed = -3"), "study.toml: seed is -3"),
    "no truth": (STUDY.replace("= true", "= 1"), "drop_missing in study.toml is neither true nor false"),
    "a key that is no text": (STUDY.replace('"secret"', "3"), "hash_key in study.toml is not a text"),
    "no arguments": (STUDY.replace('x = ["age", "chol", "sex"]\ny = "num"', ""), "arguments in study.toml is empty"),
    "an argument of nothing": (STUDY.replace('y = "num"', "y = 3"), "study.toml: y is '3': pass a column's name"),
    "a reserved argument": (STUDY.replace('y = "num"', 'source = "num"'), "study.toml: an argument is called 'source'"),
    "no table": (STUDY.replace("[arguments]", "[[arguments]]"), "arguments in study.toml is not a table"),
    "a column of no argument": (
        STUDY + "[columns.ages]\nunit = 'years'\n",
        "columns.ages in study.toml is not known .no argument is made of it.: write 'age'",
    ),
    "an entry of a column": (STUDY + "[columns.age]\nlimit = [0, 1]\n", "columns.age.limit in study.toml is not known"),
    "one constant": (STUDY + "[columns.age]\ncentre = 3\n", "columns.age in study.toml has one of centre and scale"),
    "no scale": (STUDY + "[columns.age]\ncentre = 3\nscale = 0\n", "study.toml: standardise of column 'age'"),
    "one limit": (STUDY + "[columns.age]\nlimits = [0]\n", "study.toml: limits of column 'age'"),
    "limits that are text": (STUDY + "[columns.age]\nlimits = ['a', 'b']\n", "columns.age.limits in study.toml"),
    "one level": (STUDY.replace('["f", "m"]', '["f"]'), "study.toml: levels of column 'sex'"),
    "a unit that is no text": (STUDY.replace('"vessels"', "3"), "columns.num.unit in study.toml is not a text"),
    "a setting": (STUDY + "components = 3\n", "inference.components in study.toml is not known .*'num_components'"),
    "no components": (STUDY.replace("num_components = 1", "num_components = 0"), "study.toml: .*num_components is 0"),
    "components as text": (STUDY.replace("components = 1", "components = '1'"), "study.toml: .*num_components is '1'"),
    "a family": (STUDY + "covariance = 'round'\n", "inference.covariance in study.toml is not one of auto, spherical"),
    "a family that is a list": (STUDY + "covariance = []\n", "inference.covariance in study.toml is not one of auto"),
}  # fmt: skip


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("name", BAD)
def test_a_mistake_in_a_study_is_named_with_the_file(name, folder):
    text, sentence = BAD[name]
    (folder / "study.toml").write_text(text)
    refused(lambda: load_study("study.toml"), sentence)


def test_shares_of_the_prior_may_be_said(folder):
    (folder / "study.toml").write_text(
        STUDY.replace('shards = ["north", "south", "west"]', "").replace(
            "[arguments]", '[shards]\nnorth = "2/4"\nsouth = 0.25\nwest = "1/4"\n[arguments]'
        )
    )
    study = load_study("study.toml")
    assert [str(share) for share in study.shards.values()] == ["1/2", "1/4", "1/4"]
    refused(lambda: load_study("nosuch.toml"), "nosuch.toml cannot be read: No such file")
    refused(lambda: load_study("."), r"\. cannot be read: Is a directory")


# Constants that epvi pool writes into the study.


def told(folder, *options):
    for name in ("north", "south", "west"):
        call("stats", *options, "--rows", f"{name}.csv", "-o", f"{name}.stats.epvi")
    return [f"{name}.stats.epvi" for name in ("north", "south", "west")]


def test_the_centre_writes_constants_into_the_study_and_leaves_the_rest_as_it_was(folder):
    text = (
        STUDY.replace("min_rows = 12", 'min_rows = 12\nstandardise = ["age"]')
        + '\n[columns.age]  # years\nunit = "a"\n'
    )
    (folder / "study.toml").write_text(text)
    assert (
        "are not in it yet"
        in call("shard", "study.toml", "--rows", "north.csv", "--shard", "north", "-o", "n.epvi", code=1).stderr
    )
    files = told(folder, "study.toml")
    assert list(load_any(files[0]).columns) == ["age"]
    part = call("pool", *files[:2], "--into", "study.toml").stdout
    assert "They are those of 2 of its 3 sites." in part
    assert "sites" not in call("pool", *files, "--into", "study.toml").stdout
    centre, scale = call_json("pool", *files)["constants"]["age"]
    made = load_study("study.toml")
    assert made.columns["age"] == {"unit": "a", "centre": centre, "scale": scale}
    kept = [
        line for line in (folder / "study.toml").read_text().splitlines() if not line.startswith(("centre", "scale"))
    ]
    assert kept == text.splitlines()


def test_constants_of_other_columns_and_for_categories_are_not_written(folder):
    before = (folder / "study.toml").read_bytes()
    (folder / "north.csv").write_text((folder / "north.csv").read_text().replace("chol", "weight"))
    call("stats", "--rows", "north.csv", "--x", "age,weight", "--drop-missing", "-o", "other.epvi")
    said = call("pool", "other.epvi", "--into", "study.toml", code=1).stderr
    assert "no argument that is made of column 'weight'" in said
    (folder / "sex.csv").write_text("sex\n" + "0\n1\n" * 10)
    call("stats", "--rows", "sex.csv", "--x", "sex", "-o", "sex.epvi")
    said = call("pool", "sex.epvi", "--into", "study.toml", code=1).stderr
    assert "cannot be written into study.toml" in said
    assert (folder / "study.toml").read_bytes() == before


# Rows that meet a posterior again.


def test_rows_that_are_coded_otherwise_than_those_that_were_fitted_are_refused(folder):
    constants = "\n[columns.age]\ncentre = 55.0\nscale = 9.0\n"
    (folder / "study.toml").write_text(STUDY.replace('["north", "south", "west"]', '["north"]') + constants)
    call("shard", "study.toml", "--rows", "north.csv", "--shard", "north", "-o", "n.epvi")
    call("combine", "n.epvi", "-o", "p.epvi")
    expected = call_json("predict", "study.toml", "p.epvi", "--rows", "north.csv", "--draws", "50")["log_predictive"]
    options = ("--rows", "north.csv", "--x", "age,chol,sex", "--y", "num", "--drop-missing", "--draws", "50")
    assert (
        call_json("predict", "model.py:linear", "p.epvi", *options, "--levels", "sex=f,m")["log_predictive"] == expected
    )
    said = call("predict", "model.py:linear", "p.epvi", *options, "--levels", "sex=m,f", code=1).stderr
    assert "x is made of age, chol, sex=f, and where the posterior was fitted of age, chol, sex=m" in said
    (folder / "study.toml").write_text((folder / "study.toml").read_text().replace("scale = 9.0", "scale = 1.0"))
    said = call("predict", "study.toml", "p.epvi", "--rows", "north.csv", code=1).stderr
    assert "column 'age' has the constants (55.0, 1.0), and where the posterior was fitted (55.0, 9.0)" in said
    model, posterior = load_study("study.toml").model(), epvi.load("p.epvi")
    rows = epvi.Rows("north.csv", x=["age", "chol", "sex"], y="num", levels={"sex": ["f", "m"]}, drop_missing=True)
    for verb in (epvi.predict, epvi.log_predictive):
        refused(lambda verb=verb: verb(model, posterior, rows), "column 'age' has the constants none")
    refused(lambda: posterior.to_arviz(model=model, rows=rows), "column 'age' has the constants none")


def test_lists_and_files_of_numbers_are_arrays_to_a_model(folder):
    (folder / "model.py").write_text(
        MODEL.replace("def linear(x, y=None):", "def linear(x, y=None, *, sd):").replace(
            "1.0).expand([x.shape[1]])", "sd)"
        )
    )
    np.save(folder / "sd.npy", np.array([1.0, 2.0, 3.0]))
    fits = []
    for said in ("[1, 2, 3]", '"@sd.npy"'):
        (folder / "study.toml").write_text(STUDY + f"\n[fixed]\nsd = {said}\n")
        call("shard", "study.toml", "--rows", "north.csv", "--shard", "north", "-o", "n.epvi")
        fits.append(epvi.load("n.epvi"))
    np.testing.assert_array_equal(fits[0].mixture.means, fits[1].mixture.means)
    assert fits[0].made_of.fixed == fits[1].made_of.fixed
    (folder / "study.toml").write_text(STUDY + '\n[fixed]\nsd = "@nothing.npy"\n')
    said = call("shard", "study.toml", "--rows", "north.csv", "--shard", "north", "-o", "n.epvi", code=1).stderr
    assert "sd cannot be read from" in said


def test_a_shard_needs_the_study_and_its_rows_and_nothing_else(folder):
    said = call_json("shard", "study.toml", "--shard", "2/3", "--rows", "south.csv")
    assert said["file"] == "shard-2-of-3.epvi"
    assert epvi.load("shard-2-of-3.epvi").label == "2 of 3 (south)"
    (folder / "shard-3-of-3.epvi").write_text("notes")
    refusal = call("shard", "study.toml", "--shard", "west", "--rows", "west.csv", code=1).stderr
    assert "shard-3-of-3.epvi is there already and epvi did not write it" in refusal
    assert (folder / "shard-3-of-3.epvi").read_text() == "notes"
