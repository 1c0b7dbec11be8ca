"""Files of the later rounds: certificates, steps, draws and scores come back as they were, or are refused by name."""

import dataclasses
import functools
import itertools
import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hostile import inputs
from sentences import refused
from some_fits import array, entry, mixture, some_fit
from yardstick import cost

import epvi
from epvi import EpviError
from epvi.files import load_only
from epvi.gaussian.mixture import Estimate
from epvi.hub.posterior.posterior import pack_posterior, unpack_posterior
from epvi.hub.refine.natural_gradient import JointMoments
from epvi.hub.refine.pool import ScoredDraws
from epvi.hub.refine.step import Run, Step
from epvi.hub.trust.agreement import Accord, Agreement
from epvi.hub.trust.certify import Certificate
from epvi.hub.trust.chains import Chains
from epvi.hub.trust.propose import Source
from epvi.hub.trust.reasons import Fault, Reason, Verdict
from epvi.wire.answer import Derivatives, Expected, Scores, Variation, pack_scores
from epvi.wire.envelope import Envelope, Malformed, seal
from epvi.wire.request import Asked, pack_draws

NUM_DRAWS, NUM_SHARDS = 64, 3
# What reading one file may cost, in the units of `yardstick`.
MOST_COST = 500


def some_posterior(structure=epvi.Full()):  # noqa: B008 (a frozen choice)
    """Of three shards, one of which a stand-in holds the place of."""
    fits = []
    for m in range(1, NUM_SHARDS + 1):
        fit = dataclasses.replace(some_fit(k=1, shard=m, structure=structure), num_shards=3, prior=Fraction(1, 3))
        rows = dataclasses.replace(fit.made_of, rows=str(m))
        fits.append(dataclasses.replace(fit, made_of=rows, num_rows=0 if m == 3 else 40 + m))
    return epvi.combine(fits)


LABELS = tuple(some_fit(k=1, shard=m).label for m in (1, 2))
SOME_AGREEMENT = Agreement(Accord.DISAGREE, "shard 2 disagrees.", LABELS, (1.0, 1e-5), LABELS[1:])


def some_certificate(posterior, seed=0, **changes):
    rng = np.random.default_rng(seed)
    made = Certificate(
        verdict=Verdict.NOT,
        text="do not trust: shard 2 of 3 is in conflict with the others (p = 1e-5).",
        corrects=True,
        ess=41.5,
        efficiency=0.7,
        k_hat=-np.inf,
        mean_shift=0.1 + 0.2,
        mean_error=0.01,
        sd_ratios=(1 / 3, 0.9),
        elbo=Estimate(np.asarray(-np.inf), np.asarray(np.inf)),
        log_evidence=Estimate(np.asarray(-100.25), np.asarray(0.1)),
        doubt=0.0,
        agreement=SOME_AGREEMENT,
        theta=rng.normal(size=(NUM_DRAWS, posterior.space.dim)),
        weights=rng.dirichlet(np.ones(NUM_DRAWS)),
        own=rng.dirichlet(np.ones(NUM_DRAWS)),
        faults=(Fault(Reason.CONFLICT, "shard 2 of 3 is in conflict with the others (p = 1e-5)"),),
    )
    return dataclasses.replace(made, **changes)


def some_moments(d, structure, seed=0):
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(3, d))
    bend = rng.normal(size=(2, d, d) if structure == epvi.Full() else (2, d))
    expected = Expected(rng.normal(size=(2, 6)), rng.normal(size=(2, d)), bend)
    return JointMoments(mixture(2, d, structure), np.concatenate([half, -half]), expected)


def refined_posterior(structure=epvi.Full()):  # noqa: B008
    made = some_posterior()
    before, certificate = some_moments(made.space.dim, structure), some_certificate(made, 1, log_evidence=None)
    step = Step(2, 0.5, np.inf, before, made.fits[0].mixture, certificate)
    return dataclasses.replace(made, certificate=some_certificate(made), step=step, traffic=12345)


def some_draws(num_base=4):
    posterior = some_posterior()
    made = posterior.ask(NUM_DRAWS, seed=3)
    asked = dataclasses.replace(made.asked, num_base=num_base)
    return dataclasses.replace(made, asked=asked, base=made.base[:num_base])


def some_scores(moments=True, exact=False, dense=True, d=3, slopes=False):
    rng = np.random.default_rng(5)
    shape = (2, d, d) if dense else (2, d)
    bends = rng.normal(size=(2, *shape))
    if dense:
        bends = bends + np.swapaxes(bends, 2, 3)
    values = rng.normal(size=NUM_DRAWS)
    values[7] = -np.inf
    return Scores(
        asked=Asked("f" * 32, NUM_DRAWS, 4 if moments else 0, (0, 3), slopes),
        shard=2,
        num_shards=3,
        label="2 of 3 (Zürich)",
        prior=Fraction(1, 3),
        num_rows=42,
        made_of=some_fit().made_of,
        values=values,
        errors=np.zeros(NUM_DRAWS) if exact else rng.gamma(1.0, size=NUM_DRAWS),
        echo=rng.normal(size=d),
        centres=Derivatives(rng.normal(size=2), rng.normal(size=(2, d)), bends[0]),
        rows=Variation(rng.normal(size=d), np.abs(bends[0][0])),
        moments=Expected(rng.normal(size=(2, 4)), rng.normal(size=(2, d)), bends[1]) if moments else None,
        exact=exact,
        proper=True,
        passes=9,
        seconds=0.25,
        slopes=rng.normal(size=(4, d)) if slopes else None,
    )


def same(a, b):
    """Equal in everything, to the last bit of every array; NaN equals NaN, and where it was read from is nothing."""
    assert type(a) is type(b)
    if dataclasses.is_dataclass(a):
        names = [field.name for field in dataclasses.fields(a) if field.name != "file"]
        for name in names:
            same(getattr(a, name), getattr(b, name))
    elif isinstance(a, tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    elif isinstance(a, np.ndarray) or hasattr(a, "__array__"):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
        assert np.asarray(a).dtype == np.asarray(b).dtype
    else:
        assert repr(a) == repr(b)


def adapting_posterior():
    """In the midst of the second run of adaptive rounds."""
    made = some_posterior()
    wide = made.mixture
    pool = ScoredDraws(
        np.arange(30.0).reshape(5, 6), -np.arange(5.0), (Source(((4, wide), (1, wide))), Source(((3, wide),)))
    )
    first = Run(wide, some_certificate(made, 2), 1, ScoredDraws(pool.theta[1:], pool.log_p[1:], pool.sources[:1]))
    step = Step(
        4, 1.0, 0.5, None, wide, some_certificate(made, 1), adapted=2, mixture_adapted=1, pool=pool, first=first
    )
    return dataclasses.replace(made, step=step)


def test_the_pool_of_adaptive_rounds_comes_back(tmp_path):
    made = adapting_posterior()
    same(epvi.load(made.save(tmp_path / "a.epvi")), made)
    looks = dataclasses.replace(made.step, mixture=None, certificate=None, pool=None, around=3)
    made = dataclasses.replace(made, step=looks)
    same(epvi.load(made.save(tmp_path / "b.epvi")), made)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("pool",), []),
        (("pool", 0, "parts"), []),
        (("pool", 0, "parts", 0, "draws"), 0),
        (("pool", 1, "parts", 0, "draws"), 2**60),
        (("first", "pool"), []),
        (("first", "adapted"), -1),
        (("first", "mixture"), "round"),
        (("pool", 0, "parts", 1, "structure"), "round"),
        (("mixture",), None),
        (("adapted",), -1),
        (("around",), -1),
        (("around",), 1),
    ],
)
def test_a_pool_that_does_not_fit_is_refused(place, value):
    content = pack_posterior(adapting_posterior())
    entry_of = content.record["step"]
    for name in place[:-1]:
        entry_of = entry_of[name]
    entry_of[place[-1]] = value
    with pytest.raises(Malformed):
        unpack_posterior(content)


@pytest.mark.parametrize("structure", [epvi.Full(), epvi.Diagonal()])
def test_a_posterior_comes_back_with_its_certificate_and_its_step(tmp_path, structure):
    made = refined_posterior(structure)
    again = epvi.load(made.save(tmp_path / "posterior.epvi"))
    same(again.certificate, made.certificate)
    assert again.certificate.k_hat == -np.inf
    assert again.certificate.reasons == ("conflict",)
    assert (again.step.rounds, again.step.rate, again.step.gained) == (2, 0.5, np.inf)
    same(again.step.certificate, made.step.certificate)
    assert again.step.certificate.log_evidence is None
    same(tuple(again.step.before.expected), tuple(made.step.before.expected))
    same(again.step.before.base, made.step.before.base)
    same(again.step.before.gaussians, made.step.before.gaussians)
    same(again.step.mixture, made.step.mixture)
    assert again.traffic == 12345
    assert (str(again.status), again.bytes_exchanged) == (str(made.status), made.bytes_exchanged)
    np.testing.assert_array_equal(again.summary().mean, made.summary().mean)
    # Asked again, it asks the same.
    same(again.ask(NUM_DRAWS).asked, made.ask(NUM_DRAWS).asked)


def test_draws_of_nuts_come_back(tmp_path):
    made = some_posterior()
    draws = np.random.default_rng(4).normal(size=(2, 30, made.space.dim))
    certificate = some_certificate(made, verdict=Verdict.SAMPLED, chains=Chains(draws, 1, 500, 0.25))
    made = dataclasses.replace(made, certificate=certificate)
    again = epvi.load(made.save(tmp_path / "posterior.epvi"))
    same(again.certificate, made.certificate)
    np.testing.assert_array_equal(again.theta(7, seed=0), made.theta(7, seed=0))
    np.testing.assert_allclose(
        again.summary(of=lambda draws: {"all": made.space.unconstrain(draws)}).mean, np.mean(draws, (0, 1))
    )
    content = pack_posterior(made)
    for change, message in (
        (array("certificate/chains", draws[..., :-1]), "not draws of 6 parameters"),
        (array("certificate/chains", draws[:, :2]), "at least 4 draws"),
        (array("certificate/chains", np.full_like(draws, np.nan)), "is not finite"),
        (entry("certificate", "chains", "divergences", value=-1), "divergences is not a whole number"),
        (lacking("certificate/chains"), "has no array certificate/chains"),
        (entry("certificate", "chains", value=None), "draws of NUTS, which it does not have"),
    ):
        path = tmp_path / "wrong.epvi"
        path.write_bytes(changed(content, change))
        refused(lambda path=path: epvi.load(path), message)


def test_a_confirmed_step_and_a_posterior_without_rounds_come_back(tmp_path):
    made = some_posterior()
    plain = epvi.load(made.save(tmp_path / "plain.epvi"))
    assert (plain.certificate, plain.step, plain.traffic) == (None, None, 0)
    settled = dataclasses.replace(made, step=Step(1, 1.0, 0.25))
    again = epvi.load(settled.save(tmp_path / "settled.epvi"))
    assert (again.step.rounds, again.step.gained, again.step.before) == (1, 0.25, None)
    # A file from before there were rounds.
    content = pack_posterior(refined_posterior())
    older = {name: value for name, value in content.record.items() if name not in ("certificate", "step", "traffic")}
    path = tmp_path / "older.epvi"
    path.write_bytes(seal(content._replace(record=older)))
    assert epvi.load(path).certificate is None


def test_reasons_of_a_certificate_may_be_left_out_or_unknown(tmp_path):
    content = pack_posterior(refined_posterior())
    path = tmp_path / "posterior.epvi"

    def reasons(change):
        path.write_bytes(changed(content, change))
        return epvi.load(path).certificate.reasons

    # As a version that knew none wrote it.
    assert reasons(lambda record, arrays: record["certificate"].pop("reasons")) == ()
    # From a version with one verdict: the p-values say who disagrees.
    path.write_bytes(changed(content, lambda record, arrays: record["certificate"].pop("agreement")))
    earlier = epvi.load(path).certificate
    assert (earlier.verdict, earlier.reasons) == ("do not trust", ("conflict",))
    assert (earlier.agreement.verdict, earlier.agreement.flagged) == ("the shards disagree", LABELS[1:])
    later = [{"code": "full-moon", "finding": "it was full"}, {"code": "lost-mode", "finding": "it lacks one"}]
    assert reasons(entry("certificate", "reasons", value=later)) == (Reason.OTHER, Reason.LOST_MODE)


def test_draws_and_scores_come_back_as_they_were(tmp_path):
    draws = some_draws()
    again = epvi.load(draws.save(tmp_path / "draws.epvi"))
    assert again.file == str(tmp_path / "draws.epvi")
    np.testing.assert_array_equal(again.theta, draws.theta)
    np.testing.assert_array_equal(again.points(), draws.points())
    assert (again.asked, again.shares, repr(again.made_of)) == (draws.asked, draws.shares, repr(draws.made_of))
    assert again.made_of.rows == ""
    for moments, exact, dense in itertools.product((True, False), repeat=3):
        scores = some_scores(moments, exact, dense)
        path = scores.save(tmp_path / "scores.epvi")
        found = epvi.load(path)
        assert repr(found.made_of) == repr(scores.made_of)
        same(dataclasses.replace(found, made_of=scores.made_of), scores)
        assert found.called == f"{path} (shard 2 of 3 (Zürich))"


def test_gradients_at_base_draws_and_factors_of_sds_come_back(tmp_path):
    scores = some_scores(slopes=True)
    found = epvi.load(scores.save(tmp_path / "scores.epvi"))
    np.testing.assert_array_equal(found.slopes, scores.slopes)
    assert found.asked.slopes
    assert found.num_numbers == some_scores().num_numbers + scores.slopes.size
    without = epvi.load(dataclasses.replace(scores, slopes=None).save(tmp_path / "without.epvi"))
    assert without.slopes is None
    posterior = some_posterior()
    scales = np.linspace(1.0, 1.1, posterior.space.dim)
    posterior = posterior.with_certificate(some_certificate(posterior, scales=scales))
    again = epvi.load(posterior.save(tmp_path / "posterior.epvi"))
    np.testing.assert_array_equal(again.certificate.scales, scales)


def test_scores_of_one_parameter_come_back(tmp_path):
    scores = some_scores(d=1)
    found = epvi.load(scores.save(tmp_path / "scores.epvi"))
    assert found.centres.hessian.shape == (2, 1, 1)
    np.testing.assert_array_equal(found.centres.hessian, scores.centres.hessian)


def changed(content, change):
    record, arrays = json.loads(json.dumps(content.record)), {k: np.array(v) for k, v in content.arrays.items()}
    change(record, arrays)
    return seal(Envelope(content.kind, record, arrays))


def lacking(name):
    return lambda record, arrays: arrays.pop(name)


NAN = np.full(NUM_DRAWS, np.nan)
EVEN = np.full(NUM_DRAWS, 1 / NUM_DRAWS)
WRONG_POSTERIOR = {
    "another verdict": (entry("certificate", "verdict", value="trust me"), "verdict is not one of"),
    "no words": (entry("certificate", "text", value=""), "certificate has no text"),
    "words for a terminal": (entry("certificate", "text", value="\x1b[2J"), "text is not a printable text"),
    "a reason in words": (entry("certificate", "reasons", value=["conflict"]), "reasons is not a table"),
    "a reason without a finding": (entry("certificate", "reasons", value=[{"code": "conflict"}]), "has no finding"),
    "endless reasons": (entry("certificate", "reasons", value=[{}] * 65), "reasons is not a list of at most 64"),
    "no truth": (entry("certificate", "corrects", value=1), "corrects is neither true nor false"),
    "too many effective draws": (entry("certificate", "ess", value=65.0), "ess is not a number of its draws"),
    "a text for a number": (entry("certificate", "k_hat", value="many"), "k_hat is not a number"),
    "a huge number": (entry("certificate", "doubt", value=1e200), r"doubt is beyond 1e\+150"),
    "factors the wrong way": (entry("certificate", "sd_ratios", value=[2.0, 1.0]), "sd_ratios are not two factors"),
    "one factor": (entry("certificate", "sd_ratios", value=[1.0]), "sd_ratios are not two numbers"),
    "half an estimate": (entry("certificate", "elbo", value=[1.0]), "elbo are not two numbers"),
    "no chance": (entry("certificate", "conflict", value=[0.5, 1.5]), "not a chance from 0 to 1"),
    "a chance too few": (entry("certificate", "conflict", value=[0.5]), "a chance for every shard that has rows"),
    "a chance too many": (entry("certificate", "conflict", value=[0.5] * 3), "list of at most 2"),
    "an agreement of another kind": (
        entry("certificate", "agreement", "verdict", value="maybe"),
        "agreement is not one",
    ),
    "an agreement without words": (entry("certificate", "agreement", "text", value=""), "agreement has no text"),
    "a shard beyond": (entry("certificate", "agreement", "flagged", value=[2]), "flags shards that it does not have"),
    "part of a shard": (entry("certificate", "agreement", "flagged", value=[0.5]), "not a whole number"),
    "flags in agreement": (
        entry("certificate", "agreement", "verdict", value="the shards agree"),
        "flags shards and says that they agree",
    ),
    "no table": (entry("certificate", value=[1]), "certificate is not a table"),
    "no draws": (lacking("certificate/theta"), "certificate/theta are not points"),
    "other dimensions": (array("certificate/theta", np.zeros((NUM_DRAWS, 5))), "not points in 6 dimensions"),
    "none of the draws": (array("certificate/theta", np.zeros((0, 6))), "not from 1 to"),
    "infinite draws": (array("certificate/theta", np.full((NUM_DRAWS, 6), np.inf)), "theta are not finite"),
    "weights that are no numbers": (array("certificate/weights", NAN), "weights is not finite"),
    "weights of more": (array("certificate/weights", 1.001 * EVEN), "weights are not weights that sum to 1"),
    "weights below nothing": (array("certificate/own", np.r_[2.0, -1.0, np.zeros(62)]), "own are not weights"),
    "scales of nothing": (array("certificate/scales", np.zeros(6)), "certificate/scales are not positive"),
    "too few scales": (array("certificate/scales", np.ones(5)), "certificate/scales does not have the shape"),
    "too few weights": (array("certificate/own", np.ones(1)), "own does not have the shape"),
    "endless rounds": (entry("step", "rounds", value=10**9), "rounds is not a whole number"),
    "no step size": (entry("step", "rate", value=0), "rate is not a step size"),
    "a step too far": (entry("step", "rate", value=2), "rate is not a step size"),
    "no gain": (entry("step", "gained", value=None), "gained is not a number"),
    "another structure": (entry("step", "before", "structure", value="diagonal"), "shapes of a diagonal mixture"),
    "no Gaussians": (lacking("before/means"), "it has no array before/means"),
    "odd base draws": (array("before/base", np.zeros((5, 6))), "base draws not pairs"),
    "no base draws": (array("before/base", np.zeros((0, 6))), "base draws not pairs"),
    "values of other draws": (array("before/values", np.zeros((2, 8))), "before/values does not have the shape"),
    "a gradient too few": (array("before/gradient", np.zeros((1, 6))), "before/gradient does not have the shape"),
    "diagonals": (array("before/hessian", np.zeros((2, 6))), "it has no array before/hessian"),
    "an infinite Hessian": (array("before/hessian", np.full((2, 6, 6), np.inf)), "before/hessian is not finite"),
    "weights before": (array("before/certificate/own", 2 * EVEN), "before/certificate/own are not weights"),
    "less than nothing exchanged": (entry("traffic", value=-1), "traffic is not a whole number"),
}
WRONG_DRAWS = {
    "other draws than it says": (entry("asked", "num_draws", value=65), "theta are not points .* as many as it says"),
    "no draws": (entry("asked", "num_draws", value=0), "num_draws is not a whole number from 1"),
    "odd base draws": (entry("asked", "num_base", value=3), "num_base is not an even number"),
    "gradients in words": (entry("asked", "slopes", value="yes"), "slopes is neither true nor false"),
    "no seed": (entry("asked", "key", value=[-1, 0]), "key is not a seed"),
    "a long digest": (entry("asked", "posterior", value="f" * 100), "posterior is not a printable text"),
    "no centres": (array("centres", np.zeros((0, 6))), "centres and its Gaussians are not from 1 to 256"),
    "too many centres": (array("centres", np.zeros((257, 6))), "centres and its Gaussians are not from 1 to 256"),
    "NaN draws": (array("theta", np.full((NUM_DRAWS, 6), np.nan)), "theta are not finite"),
    "nobody": (entry("shares", value=[]), "not those of different shards"),
    "somebody twice": (entry("shares", value=[[1, 3, "a", "1/3"]] * 2), "not those of different shards"),
    "shard 4 of 3": (entry("shares", value=[[4, 3, "a", "1/3"]]), "shard is not a whole number from 1 to 3"),
    "no share": (entry("shares", value=[[1, 3, "a"]]), "something that is not a shard"),
    "a share for a terminal": (entry("shares", value=[[1, 3, "\x1b", "1/3"]]), "label is not a printable text"),
}
WRONG_SCORES = {
    "NaN": (array("values", NAN), "values are not a log density"),
    "plus infinity": (array("values", np.full(NUM_DRAWS, np.inf)), "values are not a log density"),
    "beyond all": (array("values", np.full(NUM_DRAWS, 1e300)), "values are not a log density"),
    "other draws than it says": (entry("asked", "num_draws", value=10**6), "values are not a log density"),
    "no errors": (lacking("errors"), "it has no array errors"),
    "errors below zero": (array("errors", -np.ones(NUM_DRAWS)), "errors are not positive"),
    "other dimensions": (array("echo", np.zeros(4)), "gradient does not have the shape"),
    "no dimensions": (array("echo", np.zeros(0)), "echo has no dimensions"),
    "a centre too few": (array("centres/value", np.zeros(1)), "not those at the same centres"),
    "half a Hessian": (array("centres/hessian", np.zeros((2, 5))), "neither matrices nor diagonals in 3"),
    "no variation of rows": (lacking("rows/products"), "it has no array rows/products"),
    "rows that vary less than nothing": (array("rows/products", -np.ones(6)), "rows/products are not those"),
    "rows of other dimensions": (array("rows/gradient", np.zeros(2)), "rows/gradient does not have the shape"),
    "a Gaussian too few": (array("moments/gradient", np.zeros((1, 3))), "not those of the same Gaussians"),
    "other base draws": (entry("asked", "num_base", value=6), "moments/values does not have the shape"),
    "no base draws": (entry("asked", "num_base", value=0), "moments without base draws"),
    "infinite moments": (array("moments/values", np.full((2, 4), -np.inf)), "moments/values is not finite"),
    "shard 4 of 3": (entry("shard", value=4), "shard is not a whole number from 1 to 3"),
    "no prior": (entry("proper", value=None), "proper is neither true nor false"),
    "no rows": (entry("num_rows", value=-1), "num_rows is not a whole number"),
}
WRONG = {
    f"{kind}: {name}": (kind, *wrong)
    for kind, listed in (("posterior", WRONG_POSTERIOR), ("draws", WRONG_DRAWS), ("scores", WRONG_SCORES))
    for name, wrong in listed.items()
}


@pytest.fixture(scope="module")
def contents():
    return {
        "posterior": pack_posterior(refined_posterior()),
        "draws": pack_draws(some_draws()),
        "scores": pack_scores(some_scores()),
    }


@pytest.mark.parametrize("name", WRONG)
def test_a_sealed_file_with_something_wrong_in_it_is_refused(tmp_path, contents, name):
    kind, change, sentence = WRONG[name]
    path = tmp_path / "site.epvi"
    path.write_bytes(changed(contents[kind], change))
    refused(
        lambda: epvi.load(path), rf"site\.epvi is not a usable \.epvi file: .*({sentence})", most=400 + len(str(path))
    )


def check_sentence(sentence, most):
    assert "site-2.epvi" in sentence
    assert sentence.isprintable()
    assert len(sentence) < most


def loaded(path):
    """What is in a file, or its refusal."""
    try:
        return epvi.load(path)
    except EpviError as error:
        return error


def test_hostile_files_of_later_rounds_are_refused_or_can_be_used(tmp_path, contents, untyped):
    good = [seal(contents[kind]) for kind in ("posterior", "posterior", "draws", "scores")]
    path = tmp_path / "site-2.epvi"
    outcomes = set()
    for way, content in itertools.islice(inputs(good, 11), 400):
        path.write_bytes(content)
        found, spent = cost(functools.partial(loaded, path))
        assert spent < MOST_COST
        if isinstance(found, EpviError):
            check_sentence(str(found), 400 + len(str(path)))
            outcomes.add((way, "refused"))
        else:
            outcomes.add((type(found), "loaded"))
            assert repr(found).isprintable()
            if isinstance(found, epvi.Posterior):
                assert str(found.status).isprintable()
    assert {(kind, "loaded") for kind in (epvi.Posterior, epvi.Draws, Scores)} <= outcomes
    assert {("record", "refused"), ("numbers", "refused")} <= outcomes


def test_what_is_of_another_kind_is_refused_by_what_it_is(tmp_path):
    draws, scores = some_draws().save(tmp_path / "draws.epvi"), some_scores().save(tmp_path / "scores.epvi")
    fit = some_fit().save(tmp_path / "fit.epvi")
    refused(lambda: load_only(draws, epvi.Posterior), r"draws\.epvi holds draws to score: pass a file of a posterior")
    refused(
        lambda: load_only(fit, Scores), r"fit\.epvi holds a shard's fit: pass a file of a site's scores \(epvi score\)"
    )
    refused(lambda: load_only(scores, epvi.Draws), r"scores\.epvi holds a site's scores: pass a file of draws to score")


def test_the_handover_page_names_every_entry_and_every_array(contents):
    page = (Path(__file__).parents[2] / "docs" / "handover.md").read_text()
    parts = {kind: content.record for kind, content in contents.items()}
    parts |= {name: contents["posterior"].record[name] for name in ("certificate", "step")}
    names = {name for part in [*parts.values(), parts["draws"]["asked"]] for name in part}
    names |= {name for content in contents.values() for name in content.arrays if not name[0].isdigit()}
    # Of the certificate before the last step the arrays have the same names as those of the posterior's own.
    missing = [name for name in names if f"`{name}`" not in page and not name.startswith("before/certificate/")]
    assert not missing


def test_an_answer_of_other_derivatives_is_refused_at_the_centre():
    from epvi.hub.trust.propose import digest_of, draws_of

    fits = [dataclasses.replace(some_fit(k=1, shard=1), num_shards=1, prior=Fraction(1))]
    posterior = epvi.combine(fits)
    asked = Asked(digest_of(posterior), NUM_DRAWS, 0, (0, 0))
    draws = draws_of(posterior, asked)
    d = posterior.space.dim
    scores = dataclasses.replace(
        some_scores(moments=False, exact=True, d=d),
        asked=asked,
        shard=1,
        num_shards=1,
        prior=Fraction(1),
        num_rows=fits[0].num_rows,
        values=np.zeros(NUM_DRAWS),
        echo=draws.theta[-1],
        centres=Derivatives(np.zeros(1), np.zeros((1, d)), -np.eye(d)[None]),
        rows=Variation(np.zeros(d), np.eye(d)),
    )
    assert epvi.certify(posterior, [scores]).num_draws == NUM_DRAWS
    diagonal = dataclasses.replace(scores, centres=Derivatives(np.zeros(1), np.zeros((1, d)), -np.ones((1, d))))
    refused(lambda: epvi.certify(posterior, [diagonal]), "has not answered with whole Hessians, as asked")
    diagonal = dataclasses.replace(scores, rows=Variation(np.zeros(d), np.ones(d)))
    refused(lambda: epvi.certify(posterior, [diagonal]), "has not answered with whole Hessians, as asked")
