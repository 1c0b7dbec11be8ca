"""The later rounds by files, as a study does them, and a sentence for every mistake on the way."""

import dataclasses
import re
from fractions import Fraction

import numpy as np
import pytest
from commands import call, call_json

import epvi
from epvi.hub.refine.refine import settle
from epvi.study import references
from epvi.wire.answer import pack_scores
from epvi.wire.envelope import seal

SITES = (1, 2, 3)
COLUMNS = ("--x", "a,b", "--y", "y")
MODEL = """
import jax.numpy as jnp, numpyro, numpyro.distributions as dist

def counts(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)
"""
STUDY = """
name = "counts"
model = "model.py:counts"
shards = ["north", "south", "west"]
min_rows = 6
hash_key = "secret"

[arguments]
x = ["a", "b"]
y = "y"

[inference]
num_components = 1
num_starts = 2
"""


def write_rows(path, seed, n=6):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    table = np.column_stack([x, rng.poisson(np.exp(x @ [0.5, -0.5] - 1))])
    np.savetxt(path, table, "%.17g", ",", header="a,b,y", comments="")


def score(m, draws, *more):
    return call("score", "model.py:counts", draws, "--rows", f"s{m}.csv", *COLUMNS, "--shard", f"{m}/3", *more)


@pytest.fixture(scope="module", autouse=True)
def compiled_once():
    """One model for all commands, where every command of its own process would compile it anew."""
    with pytest.MonkeyPatch.context() as patch:
        known, model_named = {}, references.model_named

        def remembered(name, fixed=None, folder=None, groups=None):
            if name not in known:
                known[name] = model_named(name, fixed, folder, groups=groups)
            return known[name]

        patch.setattr("epvi.study.references.model_named", remembered)
        patch.setattr("epvi.study.study.study_model", lambda name, fixed, folder, **_: remembered(name, fixed, folder))
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder in which three sites have gone through two rounds by files."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("rounds")
        patch.chdir(folder)
        (folder / "model.py").write_text(MODEL)
        (folder / "study.toml").write_text(STUDY)
        for m in SITES:
            write_rows(f"s{m}.csv", m)
            fitted = ("shard", "model.py:counts", "--rows", f"s{m}.csv", *COLUMNS, "--shard", f"{m}/3")
            call(*fitted, "--components", "1", "-o", f"site-{m}.epvi")
        call("combine", *(f"site-{m}.epvi" for m in SITES), "-o", "posterior.epvi")
        said = {"ask": call("certify", "posterior.epvi", "--draws", "draws.epvi", "--num-draws", "256").stdout}
        for m in SITES:
            said["score"] = score(m, "draws.epvi").stdout
        first = [f"scores-{m}-of-3.epvi" for m in SITES]
        said["certify"] = call("certify", "posterior.epvi", *first, "-o", "certified.epvi").stdout
        said["refine"] = call("refine", "posterior.epvi", *first, "-o", "posterior-2.epvi").stdout
        second = [f"again-{m}.epvi" for m in SITES]
        for m, file in zip(SITES, second, strict=True):
            score(m, "draws-2.epvi", "-o", file)
        said["last"] = call("refine", "posterior-2.epvi", *second, "-o", "posterior-3.epvi", "--last").stdout
    return folder, said, first, second


@pytest.fixture
def folder(made, monkeypatch):
    monkeypatch.chdir(made[0])
    return made[0]


def same_numbers(a, b, rtol=1e-9):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=rtol)


def test_rounds_by_files_are_the_rounds_in_python(folder):
    model = references.model_named("model.py:counts")
    rows = {m: epvi.Rows(f"s{m}.csv", x=["a", "b"], y="y") for m in SITES}
    posterior = epvi.combine([epvi.load(f"site-{m}.epvi") for m in SITES])
    draws = posterior.ask(256)
    scores = [epvi.score(model, rows[m], draws, f"{m}/3") for m in SITES]
    for m, one in zip(SITES, scores, strict=True):
        same_numbers(epvi.load(f"scores-{m}-of-3.epvi").values, one.values)
    found = epvi.certify(posterior, scores)
    certified = epvi.load("certified.epvi")
    assert (certified.certificate.verdict, certified.certificate.text) == (found.verdict, found.text)
    same_numbers(certified.certificate.weights, found.weights)
    same_numbers(certified.summary().mean, posterior.with_certificate(found).summary().mean)
    refined = epvi.refine(posterior, scores)
    assert refined.step.before is not None
    second = epvi.load("posterior-2.epvi")
    same_numbers(second.mixture.means, refined.mixture.means)
    same_numbers(second.mixture.covariances(), refined.mixture.covariances())
    again = refined.ask(256)
    same_numbers(epvi.load("draws-2.epvi").theta, again.theta)
    last = settle(refined, [epvi.score(model, rows[m], again, f"{m}/3") for m in SITES])
    third = epvi.load("posterior-3.epvi")
    assert third.step.before is None
    assert third.step.gained == pytest.approx(last.step.gained)
    same_numbers(third.mixture.means, last.mixture.means)
    same_numbers(third.certificate.weights, last.certificate.weights)
    assert third.step.gained > 0


def test_every_verb_says_what_to_do_next(made):
    _, said, _, _ = made
    assert "At every site: epvi score MODEL draws.epvi --rows ROWS --shard 3/3" in said["ask"]
    assert "epvi certify posterior.epvi scores-*.epvi -o posterior.epvi" in said["ask"]
    assert re.search(r"Shard 3 of 3: 256 draws scored on 6 rows, with every row\.\nWrote scores-3-of-3", said["score"])
    assert re.match(r"(Trust|Trust with corrected weights|Do not trust): ", said["certify"])
    assert "Wrote certified.epvi" in said["certify"]
    assert "Step 1 is taken, and not confirmed yet. Wrote posterior-2.epvi" in said["refine"]
    assert "epvi score MODEL draws-2.epvi --rows ROWS" in said["refine"]
    assert re.search(r"The last step is confirmed: it gained [\d.e-]+ nats\.", said["last"])


def test_a_posterior_shows_its_certificate(folder):
    found = epvi.load("certified.epvi")
    for verb in ("show", "summary"):
        said = call(verb, "certified.epvi").stdout
        assert all(line in said for line in str(found.certificate).splitlines())
    data = call_json("summary", "certified.epvi")
    assert data["certificate"]["verdict"] == found.certificate.verdict
    assert data["certificate"]["num_draws"] == 256
    assert call_json("summary", "posterior.epvi")["certificate"] is None
    for verb in ("show", "summary"):
        assert "last step is not confirmed yet" in call(verb, "posterior-2.epvi").stdout
        assert "not confirmed yet" not in call(verb, "posterior-3.epvi").stdout
    assert call_json("show", "posterior-2.epvi")["refinement"] == {"rounds": 1, "gained": 0.0, "confirmed": False}


def test_a_posterior_that_is_only_looked_at_keeps_its_certificate(folder, tmp_path):
    target = tmp_path / "posterior.epvi"
    said = call_json("combine", "certified.epvi", "--check", "-o", target)
    assert said["certificate"] == call_json("summary", "certified.epvi")["certificate"]
    assert epvi.load(target).certificate.text == epvi.load("certified.epvi").certificate.text


def test_show_says_all_that_is_asked_and_answered(folder):
    draws, scores = epvi.load("draws.epvi"), epvi.load("scores-2-of-3.epvi")
    said = call("show", "draws.epvi").stdout
    expected = [draws.asked.posterior, "3 of 3, number 3: 1/3 of the prior", "256 draws, 64 base draws with seed 0"]
    expected += [f"w[1]: {np.mean(draws.theta[:, 1]):.6g} ± ", *(f"{x:.6g}" for x in draws.centres[0])]
    assert not [text for text in expected if text not in said]
    said = call("show", "scores-2-of-3.epvi").stdout
    expected = ["2 of 3, number 2 of 3", "6 rows, and 1/3 of the prior", scores.made_of.rows, "of every row"]
    expected += [
        f"gradient {', '.join(f'{x:.6g}' for x in part.gradient[0])}" for part in (scores.centres, scores.moments)
    ]
    expected += [f"{part.hessian[0, 1, 0]:.6g}" for part in (scores.centres, scores.moments)]
    expected += [f"gradient {', '.join(f'{x:.6g}' for x in scores.rows.gradient)}", f"{scores.rows.products[1, 0]:.6g}"]
    expected += [f"That is all: {scores.num_numbers} numbers", "sum over the site's rows"]
    assert not [text for text in expected if text not in said]
    data = call_json("show", "scores-2-of-3.epvi")
    assert data["kind"] == "moments"
    assert data["values"] == scores.values.tolist()
    assert set(pack_scores(scores).record) | set(pack_scores(scores).arrays) <= set(data)
    data = call_json("show", "draws.epvi")
    assert (data["kind"], data["theta"]) == ("draws", draws.theta.tolist())
    assert data["gaussians"]["means"] == np.asarray(draws.gaussians.means).tolist()


def test_nothing_left_to_improve_writes_the_certificate_and_no_draws(folder, tmp_path):
    draws, target = tmp_path / "draws.epvi", tmp_path / "posterior.epvi"
    files = [tmp_path / f"{m}.epvi" for m in SITES]
    epvi.load("posterior-3.epvi").save(target)
    call("certify", target, "--draws", draws, "--num-draws", "64")
    for _ in range(4):
        for m, file in zip(SITES, files, strict=True):
            score(m, draws, "-o", file)
        before = target.read_bytes()
        said = call_json("refine", target, *files, "-o", target, "--draws", draws)
        if said["draws"] is None:
            break
    assert said["draws"] is None
    assert said["certificate"]["num_draws"] == 64
    target.write_bytes(before)
    asked = draws.read_bytes()
    words = call("refine", target, *files, "-o", target, "--draws", draws).stdout
    assert "Nothing is left to improve." in words
    assert draws.read_bytes() == asked
    assert epvi.load(target).certificate is not None


def test_what_is_not_to_be_trusted_is_an_answer_unless_strict(folder, tmp_path, made):
    scores = [epvi.load(file) for file in made[2]]
    noise = np.random.default_rng(0).normal(scale=6.0, size=256)
    dataclasses.replace(scores[2], values=scores[2].values + noise).save(tmp_path / "odd.epvi")
    files = (*made[2][:2], tmp_path / "odd.epvi")
    assert call("certify", "posterior.epvi", *files).stdout.startswith("Do not trust: ")
    target = tmp_path / "posterior.epvi"
    said = call_json("certify", "posterior.epvi", *files, "--strict", "-o", target, code=3)
    assert said["certificate"]["verdict"] == "do not trust"
    assert not epvi.load(target).status.ok
    assert call("certify", "posterior.epvi", *made[2], "--strict").exit_code == 0


def test_a_site_that_disagrees_is_in_the_first_line_and_in_the_code_of_strict(folder, tmp_path, made, monkeypatch):
    # Six rows a site would be too few to test.
    monkeypatch.setattr("epvi.hub.trust.score_test._FEWEST_ROWS", 3)
    scores = [epvi.load(file) for file in made[2]]
    other = scores[2].rows._replace(gradient=scores[2].rows.gradient + 1e4)
    dataclasses.replace(scores[2], rows=other).save(tmp_path / "odd.epvi")
    files = (*made[2][:2], tmp_path / "odd.epvi")
    said = call_json("certify", "posterior.epvi", *files, "--strict", code=4)["certificate"]
    assert said["agreement"]["verdict"] == "the shards disagree"
    assert said["verdict"] != "do not trust"
    plain = call("certify", "posterior.epvi", *files, "-o", tmp_path / "posterior.epvi")
    assert plain.exit_code == 0
    # With its gradient so far off, the sum of all is, and the others disagree with it too.
    assert "shard 3 of 3 and 2 more disagree" in plain.stdout.splitlines()[0]
    assert "Shard 3 of 3 and 2 more disagree" in call("show", tmp_path / "posterior.epvi").stdout


@pytest.fixture(scope="module")
def mistaken(made):
    """Files that are wrong in one thing each."""
    folder, _, first, _ = made
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        scores = epvi.load(first[2])
        dataclasses.replace(scores, prior=Fraction(1, 2)).save("share.epvi")
        dataclasses.replace(scores, num_rows=5).save("rows.epvi")
        dataclasses.replace(scores, moments=None).save("plain.epvi")
        dataclasses.replace(scores, made_of=dataclasses.replace(scores.made_of, rows="0" * 36)).save("others.epvi")
        dataclasses.replace(scores, echo=scores.echo + 1).save("echo.epvi")
        values = tuple(2 * value for value in scores.made_of.prior_values)
        dataclasses.replace(scores, made_of=dataclasses.replace(scores.made_of, prior_values=values)).save("model.epvi")
        call("certify", "posterior-2.epvi", "--draws", "seed.epvi", "--seed", "9", "--num-draws", "64")
        other = epvi.load("seed.epvi")
        for file in made[3]:
            second = epvi.load(file)
            asked = {"asked": other.asked, "echo": other.theta[-1]}
            dataclasses.replace(second, **asked, values=second.values[:64], errors=np.zeros(64)).save(
                f"seed-{second.shard}.epvi"
            )
        content = pack_scores(scores)
        (folder / "nan.epvi").write_bytes(
            seal(content._replace(arrays={**content.arrays, "values": np.full(256, np.nan)}))
        )
        write_rows("long.csv", 9, n=7)
        (folder / "few.toml").write_text(STUDY.replace("min_rows = 6", "min_rows = 60"))
    return folder


CERTIFY = ("certify", "posterior.epvi", "scores-1-of-3.epvi", "scores-2-of-3.epvi")
SCORE = ("score", "model.py:counts", "draws.epvi", "--rows", "s3.csv", *COLUMNS, "--shard", "3/3", "-o", "new.epvi")
REFUSED = {
    "a shard lacks": (CERTIFY, "shard 3 has not scored the draws: add its file"),
    "a shard twice": ((*CERTIFY, "scores-1-of-3.epvi"), r"scores-1-of-3\.epvi \(shard 1 of 3\) has answered twice"),
    "draws of the next round": ((*CERTIFY, "again-3.epvi"), r"and again-3\.epvi .* answer different draws: have all"),
    "another posterior": (
        ("certify", "posterior-2.epvi", *CERTIFY[2:], "scores-3-of-3.epvi"),
        r"scores-1-of-3\.epvi .* answers the draws of another posterior",
    ),
    "another share": ((*CERTIFY, "share.epvi"), r"share\.epvi .* scored with 1/2 of the prior, and its fit has 1/3"),
    "fewer rows": ((*CERTIFY, "rows.epvi"), r"rows\.epvi .* scored 5 other rows than the 6 that were fitted"),
    "other rows": ((*CERTIFY, "others.epvi"), r"others\.epvi .* other rows than the 6"),
    "another model": ((*CERTIFY, "model.epvi"), r"model\.epvi .* come from different models .* whose prior differs"),
    "other draws": ((*CERTIFY, "echo.epvi"), r"echo\.epvi .* was given draws that another version"),
    "a damaged answer": ((*CERTIFY, "nan.epvi"), r"nan\.epvi is not a usable \.epvi file: its values"),
    "a fit for scores": (
        (*CERTIFY, "site-3.epvi"),
        r"site-3\.epvi holds a shard's fit: pass a file of a site's scores",
    ),
    "scores for a posterior": (
        ("certify", *CERTIFY[2:]),
        "scores-1-of-3.epvi holds a site's scores: pass a file of a post",
    ),
    "a posterior for draws": (
        ("score", "model.py:counts", "posterior.epvi", *SCORE[3:]),
        r"posterior\.epvi holds a posterior: pass a file of draws to score \(epvi certify --draws\)",
    ),
    "scores to combine": (
        ("combine", "site-1.epvi", "scores-2-of-3.epvi", "--check"),
        "scores-2-of-3.epvi holds a site's scores, no shard's fit: leave it out here; epvi certify takes it",
    ),
    "draws to summarise": (("summary", "draws.epvi"), "draws.epvi holds draws to score: pass a file of a shard's fit"),
    "draws to predict with": (
        ("predict", "model.py:counts", "draws.epvi", "--rows", "s1.csv", *COLUMNS),
        "draws.epvi holds draws to score: pass a file of a posterior",
    ),
    "scores to pool": (("pool", "scores-1-of-3.epvi"), "holds a site's scores: pass a file of statistics of columns"),
    "a shard that is not asked": (
        (*SCORE[:-3], "4/4", "-o", "new.epvi"),
        r"the draws in draws\.epvi do not ask shard 4: they ask 1, 2, 3 of 3",
    ),
    "another number of shards": ((*SCORE[:-3], "3/4", "-o", "new.epvi"), "the draws are for 3 shards"),
    "no such column": ((*SCORE[:6], "a,c", *SCORE[7:]), "has no column 'c'"),
    "other columns": ((*SCORE[:6], "b,a", *SCORE[7:]), "x is made of b, a, and where"),
    "a value outside": ((*SCORE, "--limits", "a=0:0.001"), "column 'a' of file 's3.csv' has .* outside"),
    "a settled name": ((*SCORE[:-1], "posterior.epvi"), "posterior.epvi is there already and holds a posterior"),
    "too few rows for a study": (
        ("score", "few.toml", "draws.epvi", "--rows", "s3.csv", "--shard", "west", "-o", "new.epvi"),
        r"s3\.csv has 6 rows .* asks for at least 60 \(min_rows\)",
    ),
    "draws over a posterior": (("certify", "posterior.epvi", "--draws", "posterior-2.epvi"), "holds a posterior"),
    "the next draws over scores": (
        ("refine", "posterior.epvi", *CERTIFY[2:], "scores-3-of-3.epvi", "-o", "new.epvi", "--draws", "again-1.epvi"),
        "again-1.epvi is there already and holds a site's scores and moments",
    ),
    "no moments": (
        ("refine", "posterior.epvi", *CERTIFY[2:], "plain.epvi", "-o", "new.epvi"),
        "the scores hold no moments, which a refinement needs",
    ),
    "another seed": (
        ("refine", "posterior-2.epvi", *(f"seed-{m}.epvi" for m in SITES), "-o", "new.epvi"),
        r"seed-1\.epvi .* answers draws of another seed than those before the last step",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_mistake_is_a_sentence_and_nothing_is_written(name, folder, mistaken):
    arguments, sentence = REFUSED[name]
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    said = call_json(*arguments, code=1)
    assert list(said) == ["error"]
    assert re.search(sentence, said["error"]), said["error"]
    assert "\n" not in said["error"]
    assert len(said["error"]) < 400
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


WRONG = {
    "neither": (("certify", "posterior.epvi"), "Give either --draws FILE, to ask the sites, or the files of scores"),
    "both": ((*CERTIFY, "--draws", "new.epvi"), "Give either --draws FILE"),
    "a seed for what is drawn": ((*CERTIFY, "--seed", "3"), "Leave --seed out: it goes with --draws"),
    "strict draws": (("certify", "posterior.epvi", "--draws", "new.epvi", "--strict"), "Leave --strict out"),
    "few draws": (("certify", "posterior.epvi", "--draws", "new.epvi", "--num-draws", "3"), "64<=x<="),
    "draws after the last": (
        ("refine", *CERTIFY[1:], "-o", "new.epvi", "--last", "--draws", "new-draws.epvi"),
        "Leave --draws out: --last takes no step",
    ),
    "no scores": (("refine", "posterior.epvi", "-o", "new.epvi"), "Missing argument 'SCORES...'"),
    "no rows": (("score", "model.py:counts", "draws.epvi", "--shard", "3/3"), "Missing option '--rows'"),
    "a settled column": (
        ("score", "study.toml", "draws.epvi", "--rows", "s3.csv", "--shard", "west", "--x", "a"),
        "Leave --x out: study.toml settles it",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_usage_says_how_it_is_meant(name, folder):
    arguments, sentence = WRONG[name]
    said = call_json(*arguments, code=2)
    assert re.search(sentence, said["error"]), said["error"]


def test_a_study_settles_all_but_the_rows(folder, tmp_path):
    files = []
    for m, name in zip(SITES, ("north", "south", "west"), strict=True):
        fit = tmp_path / f"{name}.epvi"
        call("shard", "study.toml", "--rows", f"s{m}.csv", "--shard", name, "-o", fit)
        files.append(fit)
    posterior = tmp_path / "posterior.epvi"
    call("combine", *files, "-o", posterior)
    call("certify", posterior, "--draws", tmp_path / "draws.epvi", "--num-draws", "64", "--scores-only")
    answers = []
    for m, name in zip(SITES, ("north", "south", "west"), strict=True):
        answers.append(tmp_path / f"scores-{name}.epvi")
        shard = ("score", "study.toml", tmp_path / "draws.epvi", "--rows", f"s{m}.csv", "--shard", name)
        said = call_json(*shard, "-o", answers[-1], "--exact")
        assert (said["label"], said["moments"], said["exact"]) == (f"{m} of 3 ({name})", False, True)
    made = epvi.load(answers[0])
    assert made.made_of.study == "counts"
    # The hash has the study's key, as that of the fit has.
    assert made.made_of.rows == epvi.load(files[0]).made_of.rows != epvi.load("site-1.epvi").made_of.rows
    assert call_json("certify", posterior, *answers)["certificate"]["num_draws"] == 64
    assert "hold no moments" in call_json("refine", posterior, *answers, "-o", tmp_path / "new.epvi", code=1)["error"]


def test_a_fit_in_one_place_says_whether_it_can_be_trusted(folder, tmp_path):
    rows = ("--rows", "s1.csv", "--rows", "s2.csv", *COLUMNS)
    target = tmp_path / "posterior.epvi"
    fitted = ("fit", "model.py:counts", *rows, "--shards", "2", "--components", "1", "--workers", "1", "-o", target)
    said = call(*fitted, "--refine", "1").stdout
    found = epvi.load(target)
    assert str(found.certificate) in said
    assert found.traffic > 0
    plain = call_json(*fitted, "--no-certify")
    assert plain["certificate"] is None
