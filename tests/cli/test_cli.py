"""The command line: what it prints and where, its exit codes, and a sentence for every mistake a user makes."""

import dataclasses
import json
import os
import re
import subprocess

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from commands import MODEL, call, call_json, command, environment

import epvi
from epvi.cli.group import _VERBS
from epvi.study.references import READY
from epvi.study.study import covariances

QUICK = epvi.NVI(1, num_starts=2, num_draws=8)
COLUMNS = ("--x", "a,b", "--y", "y")


def linear(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def write_rows(path, seed, n=30):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    table = np.column_stack([x, x @ [1.0, -0.5] + rng.normal(size=n)])
    np.savetxt(path, table, "%.17g", ",", header="a,b,y", comments="")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a model, three sites' rows and files, and what goes wrong with each."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "model.py").write_text(MODEL + "\nnumber = 3\n\ndef nothing(x, y=None):\n    return x\n")
    (folder / "broken.py").write_text("def linear(x, y=None)\n    pass\n")
    (folder / "lacking.py").write_text("import numpy\nimport there_is_no_such_module\n")
    (folder / "leaving.py").write_text("import sys\nsys.exit('usage: leaving')\n")
    model = epvi.Model(linear)
    fits = []
    for m in (1, 2, 3):
        write_rows(folder / f"s{m}.csv", m)
        rows = epvi.Rows(folder / f"s{m}.csv", x=["a", "b"], y="y")
        fits.append(epvi.fit_shard(model, rows, f"{m}/3", inference=QUICK))
        fits[-1].save(folder / f"s{m}.epvi")
    epvi.combine(fits).save(folder / "posterior.epvi")
    call("stats", "--rows", folder / "s1.csv", "--x", "a,b", "-o", folder / "s1.stats.epvi")
    (folder / "empty.csv").write_text("")
    (folder / "header.csv").write_text("a,b,y\n")
    (folder / "text.csv").write_text("a,b,y\n1,low,2\n2,high,3\n")
    (folder / "gap.csv").write_text("a,b,y\n1,,2\n2,1,3\n")
    (folder / "rows.xlsx").write_text("a,b,y\n")
    (folder / "folder").mkdir()
    return folder


@pytest.fixture
def folder(made, monkeypatch):
    monkeypatch.chdir(made)
    return made


@pytest.mark.parametrize("verb", _VERBS)
def test_every_verb_has_help_with_an_example(verb):
    said = call(verb, "--help").stdout
    assert re.search(rf"Examples?:\n +epvi {verb}", said)
    assert "--json" in said
    assert max(map(len, said.splitlines())) <= 120


def test_the_door_lists_the_verbs_and_helps_with_a_wrong_one():
    said = call("--help").stdout
    assert all(f"\n  {verb} " in said for verb in _VERBS)
    assert call("--version").stdout == f"epvi, version {epvi.__version__}\n"
    assert "There is no verb 'combin': did you mean 'combine'?" in call("combin", code=2).stderr
    assert "There is no verb 'xyzzy'." in call("xyzzy", code=2).stderr


def test_help_names_the_ready_models_and_the_families():
    said = call("fit", "--help").stdout
    assert all(name in said for name in READY)
    assert "|".join(covariances()) in said


SHARD = ("shard", "model.py:linear", "--rows", "s1.csv", *COLUMNS, "--shard", "1/3", "-o", "new.epvi")


def but(option, value, base=SHARD):
    """The command with another value of an option, or another model."""
    made = list(base)
    made[1 if option == "model" else made.index(option) + 1] = value
    return made


REFUSED = {
    "no such rows": (but("--rows", "nosuch.csv"), "there is no file 'nosuch.csv'"),
    "a folder for rows": (but("--rows", "folder"), "'folder' is a directory: name its files"),
    "another ending": (but("--rows", "rows.xlsx"), "'rows.xlsx' is of no format that can be read"),
    "an empty file": (but("--rows", "empty.csv"), "'empty.csv' is empty"),
    "no rows": (but("--rows", "header.csv"), "'header.csv' has zero rows"),
    "no such column": (but("--x", "a,c"), "has no column 'c'"),
    "no such argument": (("shard", *SHARD[1:], "--column", "z=a"), "'z' is not an argument of linear"),
    "a name of epvi's own": ((*SHARD, "--column", "source=a"), "an argument is called 'source'"),
    "text": (but("--rows", "text.csv"), "column 'b' of file 'text.csv' holds text"),
    "no level": ((*but("--rows", "text.csv"), "--levels", "b=low,mid"), "has the value 'high', which is not among"),
    "outside": ((*SHARD, "--limits", "a=0:1"), "column 'a' of file 's1.csv' has .* outside 0 to 1"),
    "a missing value": (but("--rows", "gap.csv"), "has 1 missing value in 2 rows: .*--drop-missing"),
    "a syntax error": (but("model", "broken.py:linear"), r"broken.py cannot be run: SyntaxError \(line 1\)"),
    "an import error": (
        but("model", "lacking.py:linear"),
        r"lacking.py cannot be run: ModuleNotFoundError \(line 2\): No module named 'there_is_no_such_module'",
    ),
    "a model file that exits": (but("model", "leaving.py:linear"), r"leaving.py cannot be run: SystemExit \(line 2\)"),
    "no such model file": (but("model", "nosuch.py:linear"), "there is no model file nosuch.py"),
    "no such function": (but("model", "model.py:liner"), r"model.py has no 'liner' \(it has linear, nothing\)"),
    "no function": (but("model", "model.py:number"), "model.py:number is of type int: name a NumPyro model"),
    "no model": (but("model", "model.py:nothing"), "the model has no continuous parameter without an observed value"),
    "no function named": (but("model", "model.py"), "model.py is a file: name the model function in it"),
    "no ready model": (but("model", "logitsic"), "there is no ready model 'logitsic': .* logistic, multinomial"),
    "no module": (but("model", "nosuch.module:f"), "the module 'nosuch.module' cannot be imported"),
    "a lacking study": (("shard", "nosuch.toml", *SHARD[2:4], "--shard", "1/3", "-o", "new.epvi"), "nosuch.toml"),
    "a wrong shard": (but("--shard", "4/3"), "shard is '4/3'"),
    "no shard": (but("--shard", "third"), "shard is 'third'"),
    "more than the prior": ((*SHARD, "--prior", "3/2"), "prior is '3/2'"),
    "no folder to write to": (but("-o", "nosuch/new.epvi"), "there is no folder nosuch. Make it first"),
    "a folder to write": (but("-o", "folder"), "folder is a folder: name a file to write"),
    "a device to write": (but("-o", "/dev/null"), "/dev/null is no ordinary file"),
    "the rows to write": (but("-o", "s1.csv"), "s1.csv is there already and epvi did not write it"),
    "a posterior to write": (but("-o", "posterior.epvi"), "posterior.epvi is there already and holds a posterior"),
    "a shard's file to write": (("combine", "s1.epvi", "s2.epvi", "s3.epvi", "-o", "s1.epvi"), "holds a shard's fit"),
    "a setting of the model": ((*SHARD, "--set", "size=3"), "linear has no argument 'size'"),
    "an array that is not there": ((*SHARD, "--set", "size=@nosuch.npy"), "size cannot be read from nosuch.npy"),
    "a shard twice": (("combine", "s1.epvi", "s1.epvi", "s2.epvi", "s3.epvi", "--check"), "s1.epvi.* is there twice"),
    "a lacking shard": (("combine", "s1.epvi", "s2.epvi", "--check"), "sum to 2/3, not to 1 .missing: 3."),
    "no such shard's file": (("combine", "s1.epvi", "nosuch.epvi", "--check"), "nosuch.epvi cannot be read: No such"),
    "no shard's file": (("combine", "s1.epvi", "s2.csv", "--check"), "s2.csv is not a usable .epvi file"),
    "a shard that is in it": (("combine", "posterior.epvi", "s1.epvi", "--check"), "is there twice"),
    "two posteriors": (("combine", "posterior.epvi", "posterior.epvi", "--check"), "are both posteriors"),
    "statistics to combine": (("combine", "s1.stats.epvi", "--check"), "holds statistics of columns"),
    "a folder to show": (("show", "folder"), "folder is not a file"),
    "a table to show": (("show", "s1.csv"), "s1.csv is not a usable .epvi file"),
    "nothing to show": (("show", "nosuch.epvi"), "nosuch.epvi cannot be read: No such file"),
    "statistics to summarise": (("summary", "s1.stats.epvi"), "holds statistics of columns"),
    "no quantile": (("summary", "posterior.epvi", "--quantiles", "0.5,1.5"), "1.5"),
    "a fit to pool": (
        ("pool", "s1.stats.epvi", "s1.epvi"),
        "s1.epvi holds a shard's fit: pass a file of statistics of columns",
    ),
    "statistics twice": (
        ("pool", "s1.stats.epvi", "s1.stats.epvi"),
        "hold the same statistics, which would count twice",
    ),
    "few rows for statistics": (
        ("stats", "--rows", "s1.csv", "--min-rows", "31", "-o", "new.epvi"),
        "column 'a' has 30 values, fewer than 31",
    ),
    "statistics of text": (("stats", "--rows", "text.csv", "--x", "b", "-o", "new.epvi"), "column 'b' .*holds text"),
    "a fit to predict with": (
        ("predict", "model.py:linear", "s1.epvi", "--rows", "s1.csv", *COLUMNS),
        "s1.epvi holds a shard's fit: pass a file of a posterior",
    ),
    "another ending to write": (
        ("predict", "model.py:linear", "posterior.epvi", "--rows", "s1.csv", *COLUMNS, "-o", "new.txt"),
        "new.txt ends in neither .csv",
    ),
    "the rows to write predictions to": (
        ("predict", "model.py:linear", "posterior.epvi", "--rows", "s?.csv", *COLUMNS, "-o", "s1.csv"),
        "s1.csv is read from and would be lost",
    ),
    "other columns to predict with": (
        ("predict", "model.py:linear", "posterior.epvi", "--rows", "s1.csv", "--x", "a", "--y", "y"),
        "x is made of a, and where the posterior was fitted of a, b: take the same columns",
    ),
    "another model to predict with": (
        ("predict", "model.py:nothing", "posterior.epvi", "--rows", "s1.csv", *COLUMNS),
        "the posterior has a parameter 'w', which the model does not have",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_mistake_is_a_sentence_and_nothing_is_written(name, folder):
    arguments, sentence = REFUSED[name]
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    said = call_json(*arguments, code=1)
    assert list(said) == ["error"]
    assert re.search(sentence, said["error"]), said["error"]
    assert "\n" not in said["error"]
    assert len(said["error"]) < 500
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    plain = call(*arguments, code=1)
    assert plain.stdout == ""
    assert plain.stderr.startswith("epvi: ")


WRONG = {
    "no rows named": (("shard", "model.py:linear", "--shard", "1/3", "-o", "new.epvi"), "Missing option '--rows'"),
    "no shard named": ((*SHARD[:-4], "-o", "new.epvi"), "Missing option '--shard'"),
    "no file to write": (
        ("fit", "model.py:linear", "--rows", "s1.csv", *COLUMNS, "--shards", "2"),
        "Missing option '-o'",
    ),
    "no file to combine into": (("combine", "s1.epvi"), "Missing option '-o' / '--output' .or --check"),
    "no such option": ((*SHARD, "--nosuch"), "No such option.*--nosuch"),
    "no such family": ((*SHARD, "--covariance", "round"), "'round' is not one of"),
    "no number": ((*SHARD, "--seed", "x"), "'x' is not a valid integer range"),
    "no pair": ((*SHARD, "--set", "size"), "--set size: write --set NAME=VALUE"),
    "no limits": ((*SHARD, "--limits", "a=3"), "--limits a=3: write a=LOW:HIGH"),
    "neither shards nor by": (("fit", *SHARD[1:-4], "-o", "new.epvi"), "Give either --shards 8 or --by COLUMN"),
    "samples of what is exact": (("combine", "s1.epvi", "--check", "--samples", "3"), "--samples goes with --product"),
    "a settled seed": (
        ("combine", "posterior.epvi", "s1.epvi", "--check", "--seed", "3"),
        "Leave --seed out: .*keeps what",
    ),
    "no quantiles": (("summary", "posterior.epvi", "--quantiles", "a"), "--quantiles a: write probabilities"),
    "a stand-in like nothing": (("shard", "logistic", "--no-rows", "--shard", "1/3", "-o", "new.epvi"), "any few rows"),
    "no shell": (("completion", "tcsh"), "'tcsh' is not one of 'bash', 'zsh', 'fish'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_usage_says_how_it_is_meant(name, folder):
    arguments, sentence = WRONG[name]
    said = call_json(*arguments, code=2)
    assert re.search(sentence, said["error"]), said["error"]
    plain = call(*arguments, code=2)
    assert plain.stdout == ""
    # Click names the short option or the long one, by its version.
    assert re.search(f"Try 'epvi {arguments[0]} (-h|--help)' for help.", plain.stderr)


def test_what_is_not_allowed_is_said(folder, monkeypatch):
    # Whoever runs the tests may be allowed everything.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "this user may not write into ." in call(*SHARD, code=1).stderr

    def forbidden(*arguments, **options):
        raise PermissionError(13, "Permission denied", "s1.epvi")

    monkeypatch.setattr("builtins.open", forbidden)
    assert "s1.epvi cannot be read: Permission denied" in call("show", "s1.epvi", code=1).stderr


def test_an_enumeration_past_its_budget_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    model, rows = epvi.Model(linear), {"x": rng.normal(size=(8, 2)), "y": rng.normal(size=8)}
    fit = epvi.fit_shard(model, rows, "1/16", inference=QUICK)
    mixture = epvi.GaussianMixture.from_covariances(rng.normal(size=(8, 2)), np.ones((8, 2)))
    for m in range(1, 17):
        made_of = dataclasses.replace(fit.made_of, rows=f"{m:032x}")
        dataclasses.replace(fit, mixture=mixture, shard=m, made_of=made_of).save(tmp_path / f"{m}.epvi")
    files = sorted(tmp_path.glob("*.epvi"))
    said = call_json("combine", *files, "--check", "--product", "exact", code=1)["error"]
    assert re.search("281,474,976,710,656", said), said


def test_a_shard_is_fitted_shown_and_summarised(folder):
    made = call_json(*but("-o", "fitted.epvi"), "--components", "1", "--covariance", "full")
    assert (made["file"], made["num_rows"], made["prior"], made["num_parameters"]) == ("fitted.epvi", 30, "1/3", 2)
    shown = call_json("show", "fitted.epvi")
    assert shown["kind"] == "shard"
    fit = epvi.load("fitted.epvi")
    np.testing.assert_array_equal(shown["mixture"]["means"], fit.mixture.means)
    np.testing.assert_allclose(shown["mixture"]["covariances"], fit.mixture.covariances())
    assert shown["mixture"]["coordinates"] == ["w[0]", "w[1]"]
    alone = call_json("summary", "fitted.epvi")
    assert alone["stands_for"] == "shard 1 of 3 alone, with 1/3 of the prior"
    assert alone["parameters"]["w[0]"]["mean"] == pytest.approx(float(fit.mixture.mean()[0]))
    # The same shard as a library call makes it, and once more over itself.
    rows = epvi.Rows("s1.csv", x=["a", "b"], y="y")
    again = epvi.fit_shard(linear, rows, "1/3", inference=epvi.NVI(1, epvi.Full()))
    np.testing.assert_allclose(again.mixture.means, fit.mixture.means, rtol=1e-12)


def test_show_says_all_that_leaves_a_site(folder):
    said = call("show", "s2.epvi").stdout
    fit = epvi.load("s2.epvi")
    expected = [
        "shard           2 of 3",
        "30 rows, and 1/3 of the prior",
        "argument x      made of a, b",
        f"keyed hash {fit.made_of.rows}",
        "w: shape (2,), real",
        f"w[0]: {fit.mixture.means[0, 0]:.6g} ± ",
        "NVI(num_components=1, covariance=None, merge=True, num_starts=2, num_draws=8",
        "That is all: 6 numbers of the mixture",
        *(f"{value:.6g}" for value in (*fit.made_of.prior_values, *fit.made_of.row_values)),
    ]
    assert not [text for text in expected if text not in said]
    data = call_json("show", "s2.epvi")
    # Every entry of the record that is written is in the JSON.
    assert set(json.loads(json.dumps(epvi.wire.shard_fit.describe_fit(fit)))) <= set(data)
    assert "holds" not in call("show", "posterior.epvi").stderr
    assert "90 rows in 3 shards" in call("show", "posterior.epvi").stdout
    assert call_json("show", "posterior.epvi")["kind"] == "posterior"


def test_combining_prints_the_summary_the_report_and_the_file(folder, tmp_path):
    target = tmp_path / "posterior.epvi"
    said = call("combine", "s3.epvi", "s1.epvi", "s2.epvi", "-o", target, "--check").stdout
    expected = epvi.load("posterior.epvi")
    assert str(expected.summary()) in said
    assert str(expected.conflict()) in said
    assert f"Wrote {target}" in said
    found = epvi.load(target)
    np.testing.assert_array_equal(found.mixture.means, expected.mixture.means)
    data = call_json("combine", "s3.epvi", "s1.epvi", "s2.epvi", "--check", "--product", "chain", "--samples", "7")
    assert data["conflict"]["ok"]
    assert "file" not in data
    # A posterior alone can be looked at again, and be replaced by itself.
    assert call_json("combine", target, "--check", "-o", target)["conflict"]["ok"]
    assert call("summary", target).stdout.startswith(str(expected.summary()))
    assert list(call_json("summary", target, "--quantiles", "0.1")["parameters"]["w[0]"]) == ["mean", "sd", "10 %"]


def test_statistics_are_written_shown_and_pooled(folder, tmp_path):
    files = []
    for m in (1, 2):
        files.append(tmp_path / f"s{m}.epvi")
        call("stats", "--rows", f"s{m}.csv", "--x", "a,b", "-o", files[-1])
    said = call("show", files[0]).stdout
    assert said.endswith("That is all that is in it.\n")
    shown = call_json("show", files[0])["columns"]
    table = np.loadtxt("s1.csv", delimiter=",", skiprows=1)
    assert list(shown) == ["a", "b"]
    assert set(shown["a"]) == {"count", "missing", "mean", "rest", "sd"}
    assert shown["b"]["sd"] == pytest.approx(np.std(table[:, 1]))
    both = np.concatenate([table, np.loadtxt("s2.csv", delimiter=",", skiprows=1)])
    pooled = call_json("pool", *files)
    assert pooled["constants"]["a"] == pytest.approx([np.mean(both[:, 0]), np.std(both[:, 0])])
    assert call("pool", *files).stdout.startswith(f"[columns.a]\ncentre = {pooled['constants']['a'][0]!r}\n")


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """Posteriors of ready models, and rows to predict."""
    from epvi.models import multinomial, poisson, simulate_multinomial, simulate_poisson

    folder = tmp_path_factory.mktemp("others")
    made = {
        "multinomial": (epvi.Model(multinomial, num_classes=3), simulate_multinomial(40, 2, num_classes=3, seed=0)[0]),
        "poisson": (epvi.Model(poisson), simulate_poisson(40, 2, with_exposure=True, seed=0)[0]),
    }
    for name, (model, rows) in made.items():
        epvi.combine([epvi.fit_shard(model, rows, "1/1", inference=QUICK)]).save(folder / f"{name}.epvi")
        more = {"e": rows["exposure"]} if "exposure" in rows else {}
        table = {"a": rows["x"][:, 0], "b": rows["x"][:, 1], "y": rows["y"], **more}
        np.savez(folder / f"{name}.npz", **table)
        del table["y"]
        np.savez(folder / f"{name}-new.npz", **table)
    return folder


@pytest.mark.parametrize(
    ("name", "more"),
    [
        pytest.param("multinomial", ("--set", "num_classes=3"), marks=pytest.mark.slow),
        ("poisson", ("--column", "exposure=e")),
    ],
)
def test_rows_are_predicted_with_and_without_what_is_observed(name, more, others, tmp_path):
    base = ("predict", name, others / f"{name}.epvi", *COLUMNS, *more, "--draws", "50")
    scored = call_json(*base, "--rows", others / f"{name}.npz", "-o", tmp_path / "p.npz")
    assert scored["sites"]["y"] == [40]
    assert -3 < scored["log_predictive"] < 0
    new = call_json(*base, "--rows", others / f"{name}-new.npz", "-o", tmp_path / "p.csv")
    assert "log_predictive" not in new
    table = np.genfromtxt(tmp_path / "p.csv", delimiter=",", names=True)
    with np.load(tmp_path / "p.npz") as drawn:
        assert drawn["y"].shape == (50, 40)
    assert table.dtype.names == ("y_mean", "y_sd", "y_5_", "y_50_", "y_95_")
    assert len(table) == 40


def test_a_score_that_cannot_be_had_is_refused_and_not_left_out(others, tmp_path):
    with np.load(others / "multinomial.npz") as rows:
        np.savez(tmp_path / "bad.npz", **{**rows, "y": np.full(40, 7)})
    base = ("predict", "multinomial", others / "multinomial.epvi", *COLUMNS, "--set", "num_classes=3", "--draws", "9")
    said = call_json(*base, "--rows", tmp_path / "bad.npz", code=1)["error"]
    # A category that is not there has the log probability -inf, or, with older versions of NumPyro, none.
    assert re.search("log predictive density is (-inf|nan): they have a value that the model cannot give", said)


def completions(*words):
    """What the Tab key offers after these words, by Click's protocol for bash."""
    variables = {"_EPVI_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    script = (
        "import sys\nfrom epvi.cli import main\n"
        "try:\n    main(prog_name='epvi')\n"
        "finally:\n    print(sorted({'jax', 'numpy', 'numpyro', 'pyarrow'} & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [command()[0], "-c", script], env=environment(**variables), capture_output=True, text=True, timeout=60
    )
    assert done.stderr == "[]\n"
    return done.stdout.splitlines()


def test_the_tab_key_completes_verbs_options_and_models():
    assert completions("epvi", "s") == ["plain,shard", "plain,show", "plain,score", "plain,summary", "plain,stats"]
    # Files come first: in bash, what comes before them is forgotten.
    assert completions("epvi", "fit", "lo") == ["file,lo", "plain,logistic"]
    assert completions("epvi", "shard", "logistic", "--li") == ["plain,--limits"]
    assert completions("epvi", "fit", "logistic", "--product", "ch") == ["plain,chain"]
    assert completions("epvi", "show", "") == ["file,"]


def test_bash_understands_what_is_printed(tmp_path):
    said = call("completion", "bash").stdout
    assert "_EPVI_COMPLETE=bash_complete" in said
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "epvi").write_text(f'#!/bin/sh\nexec {" ".join(command())} "$@"\n')
    (bin_folder / "epvi").chmod(0o755)
    asked = "COMP_WORDS=(epvi fit lo); COMP_CWORD=2; compopt() { :; }\n_epvi_completion epvi; echo ${COMPREPLY[@]}"
    path = f"{bin_folder}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", f"{said}\n{asked}"], env=environment(PATH=path), capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "logistic\n", done.stderr
    assert all("epvi" in call("completion", shell).stdout for shell in ("zsh", "fish"))
    assert call_json("completion", "bash")["shell"] == "bash"


@pytest.mark.parametrize("arguments", [("--help",), ("fit", "--help"), ("predict", "--help"), ("nosuch",)])
def test_help_answers_without_importing_what_computes(arguments):
    script = (
        "import sys\nfrom epvi.cli import main\n"
        f"try:\n    main({list(arguments)!r}, prog_name='epvi')\n"
        "finally:\n    print(sorted({'jax', 'numpy', 'numpyro', 'pyarrow'} & set(sys.modules)))\n"
    )
    done = subprocess.run([command()[0], "-c", script], env=environment(), capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_reader_that_leaves_is_no_accident(folder):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        command("show", "posterior.epvi"),
        env=environment(),
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    os.close(writing)
    assert done.returncode == 1
    assert done.stderr == ""


def test_what_a_model_prints_is_no_result(folder, tmp_path):
    talking = MODEL.replace("    w =", '    print("here I am", x.shape)\n    w =')
    (tmp_path / "talking.py").write_text('print("loaded")\n' + talking)
    settings = ("--components", "1", "--max-sweeps", "2", "-o", tmp_path / "s1.epvi")
    result = call(*but("model", f"{tmp_path / 'talking.py'}:linear", SHARD[:-2]), *settings, "--json")
    assert json.loads(result.stdout)["num_rows"] == 30
    assert "loaded\nhere I am" in result.stderr


def test_an_interrupt_ends_with_its_own_code(folder, monkeypatch):
    def interrupted(path):
        raise KeyboardInterrupt

    monkeypatch.setattr("epvi.files.load_any", interrupted)
    result = call("show", "s1.epvi", code=130)
    assert result.stdout == ""
    assert "interrupted" in result.stderr


def test_all_rows_in_one_place_are_fitted(folder, tmp_path):
    rows = ("--rows", "s1.csv", "--rows", "s2.csv", *COLUMNS)
    target = tmp_path / "posterior.epvi"
    settings = ("--shards", "2", "--no-shuffle", "--components", "1", "--workers", "1")
    said = call_json("fit", "model.py:linear", *rows, *settings, "-o", target)
    assert (said["stands_for"], said["file"]) == ("60 rows in 2 shards", str(target))
    x = np.concatenate([np.loadtxt(f"s{m}.csv", delimiter=",", skiprows=1) for m in (1, 2)])
    precision = np.eye(2) + x[:, :2].T @ x[:, :2]
    found = epvi.load(target)
    np.testing.assert_allclose(found.mixture.mean(), np.linalg.solve(precision, x[:, :2].T @ x[:, 2]), rtol=1e-8)
    np.testing.assert_allclose(found.mixture.covariance(), np.linalg.inv(precision), rtol=1e-8)


def test_a_demo_of_few_rows_prints_the_commands_or_one_json_object(tmp_path, monkeypatch):
    monkeypatch.setattr("epvi.cli.verbs.demo._SITES", 1)
    monkeypatch.setattr("epvi.cli.verbs.demo._ROWS", 20)
    said = call_json("demo", "--into", tmp_path)
    assert list(said["made_with"]) == list(said["found"]) == ["w[0]", "w[1]", "w[2]", "w[3]"]
    words = call("demo", "--into", tmp_path).stdout
    assert re.findall(r"^\$ epvi (\w+)", words, flags=re.MULTILINE) == ["shard", "combine"]
    assert f"w[0]: {said['found']['w[0]']['mean']:.3f} ± " in words


@pytest.mark.slow
def test_the_demo_finds_the_weights_that_made_its_rows(tmp_path):
    said = call_json("demo", "--into", tmp_path)
    for name, weight in said["made_with"].items():
        assert abs(said["found"][name]["mean"] - weight) < 5 * said["found"][name]["sd"]
    assert len(list(tmp_path.glob("site-?.epvi"))) == 6
