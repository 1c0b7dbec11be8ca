"""The suite of known posteriors measures what it says: errors, targets, peers and files, on made-up answers."""

import accuracy
import accuracy_peers
import accuracy_scores
import made
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from accuracy_scores import Result, Score, targets, told
from nuts import Lengths
from posteriors import Gold, Moments

import epvi
import epvi.run.fit
from epvi.ground.seeds import as_key


def test_a_posterior_without_data_is_skipped_in_one_line(tmp_path, capsys):
    accuracy.main(["--data", str(tmp_path), "--only", "nes1996", "--no-peers"])
    said = [line for line in capsys.readouterr().out.splitlines() if "nes1996" in line]
    assert said == [f"nes1996-nes: skipped, its data are not in {tmp_path}"]


def test_an_answer_is_scored_as_by_hand():
    rng = np.random.default_rng(1)
    names = ("a", "b", "c")
    reference = Moments(names, *(rng.uniform(0.5, 2, 3) * s for s in (1, 1, 0.01, 0.01)))
    other = Moments(names[::-1], *(rng.uniform(0.5, 2, 3) * s for s in (1, 1, 0.02, 0.02)))
    found = accuracy_scores.score(other, reference)
    away, error, ratio, ratio_error = {}, {}, {}, {}
    for i, name in enumerate(names):
        j = 2 - i
        away[name] = abs(other.mean[j] - reference.mean[i]) / reference.sd[i]
        error[name] = (other.mean_error[j] ** 2 + reference.mean_error[i] ** 2) ** 0.5 / reference.sd[i]
        ratio[name] = other.sd[j] / reference.sd[i]
        relative = (other.sd_error[j] / other.sd[j]) ** 2 + (reference.sd_error[i] / reference.sd[i]) ** 2
        ratio_error[name] = ratio[name] * relative**0.5
    worst = max(away, key=lambda name: away[name])
    assert found.where == worst
    expected = away[worst], error[worst], max(away[n] - 3 * error[n] for n in names)
    np.testing.assert_allclose((found.mean, found.mean_error, found.excess), expected)
    np.testing.assert_allclose((found.low, found.high), (min(ratio.values()), max(ratio.values())))
    np.testing.assert_allclose(found.low_excess, min(ratio[n] + 3 * ratio_error[n] for n in names))
    np.testing.assert_allclose(found.high_excess, max(ratio[n] - 3 * ratio_error[n] for n in names))


def test_draws_of_the_reference_itself_score_no_more_than_their_error():
    rng = np.random.default_rng(2)
    gold = known_gold()
    exact = gold.reference
    draws = {"mu": rng.normal(exact.mean, exact.sd, size=(4000, 2))}
    found = accuracy_scores.score(gold.moments(draws), exact)
    assert found.excess < 0.03
    np.testing.assert_allclose(found.mean_error, 4000**-0.5, rtol=0.05)
    assert found.low_excess > 1 > found.high_excess


def result(method, mean, *, m=4, sds=(1.0, 1.0), verdict=None, error=0.001, peer=False, counts=True):
    scored = Score(mean, error, "a", mean - 3 * error, *sds, *sds)
    answer = accuracy_peers.Answer(None, 1.0, None, None, None, verdict)  # pyright: ignore[reportArgumentType]
    return Result("p", True, m, counts, method, peer, answer, scored)


def words(*results):
    return [outcome.word for outcome in targets(results)]


def test_targets_are_held_within_error_or_missed():
    refined = accuracy_scores.REFINED
    assert words(result(refined, 0.04)) == ["held"]
    assert words(result(refined, 0.06, error=0.01)) == ["held within error"]
    assert words(result(refined, 0.06)) == ["missed"]
    assert words(result(refined, 0.04, sds=(0.94, 1.0))) == ["missed"]
    assert words(result(refined, float("nan"))) == ["missed"]
    assert words(result(refined, 0.06, counts=False)) == []


def test_only_a_verdict_that_warns_excuses_one_round():
    assert words(result("defaults", 0.09)) == ["held"]
    assert words(result("defaults", 0.3, verdict="do not trust")) == ["held"]
    for verdict in (None, "trust", "trust with corrected weights"):
        assert words(result("defaults", 0.3, verdict=verdict)) == ["missed"]


def test_a_peer_counts_at_its_own_number_of_shards_and_on_all_rows():
    mine = result(accuracy_scores.REFINED, 0.04)
    better, whole, elsewhere = (result("peer", 0.01, m=m, peer=True) for m in (4, 1, 10))
    assert words(mine, better) == ["held", "missed"]
    assert words(mine, whole) == ["held", "missed"]
    assert words(mine, elsewhere) == ["held"]
    assert words(mine, result("peer", 0.5, peer=True)) == ["held", "held"]
    lines = told(targets([mine, better]))
    assert lines[0].startswith("held: ")
    assert lines[1].startswith("MISSED: ")
    assert lines[2].strip().startswith("missed: p, M = 4: 0.040 beside 0.010")


def known_mean(y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 0.1).expand([2]).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, 1.0).to_event(1), obs=y)


def known_gold():
    """A conjugate posterior: half of what is known of mu is the prior's."""
    y = np.random.default_rng(0).normal(0.3, size=(100, 2))
    precision = 100 + len(y)
    zero = np.zeros(2)
    reference = Moments(("mu[0]", "mu[1]"), y.sum(axis=0) / precision, np.full(2, precision**-0.5), zero, zero)
    return Gold("known", "linear", epvi.Model(known_mean), {"y": y}, reference, {"mu": zero})


def finds_the_known(peer, gold, most):
    """A posterior with two priors would be 4 sds away."""
    answer = peer.answer(gold, 2 if peer.is_sharded else 1, 0)
    found = accuracy_scores.score(answer.moments, gold.reference)
    assert found.excess < most, peer.name
    assert found.low_excess > 0.98, peer.name
    assert found.high_excess < 1.02, peer.name


def is_guide(peer):
    return peer.name.startswith("Auto")


@pytest.mark.slow
def test_peers_find_a_conjugate_posterior_from_shares_of_its_prior():
    peers = [peer for peer in accuracy_peers.peers(Lengths(200, 1000)) if not is_guide(peer)]
    assert len(peers) == 3
    gold = known_gold()
    for peer in peers:
        finds_the_known(peer, gold, 0.02)


@pytest.mark.slow
def test_guides_find_a_conjugate_posterior():
    peers = [peer for peer in accuracy_peers.peers(Lengths(), steps=5000) if is_guide(peer)]
    assert len(peers) == 2
    for peer in peers:
        finds_the_known(peer, known_gold(), 0.05)


def test_peers_have_the_shards_of_fit():
    rows = {"y": np.arange(46.0).reshape(23, 2)}
    table, split = epvi.run.fit._split(epvi.Model(known_mean), rows, 4, None, True, as_key(3))
    for part, shard in zip(accuracy_peers.shards_of(rows, 4, 3), split.shards, strict=True):
        np.testing.assert_array_equal(part["y"], table.columns["y"][shard])


def test_a_shard_must_have_more_rows_than_parameters():
    gold = known_gold()
    methods = accuracy.chosen_methods(accuracy.QUICK, ["paper", "NUTS"], with_peers=True)
    found = [(m, method.name) for m, method, _ in accuracy.runs(gold, (1, 20, 50), methods)]
    assert (1, "NUTS, all rows") in found
    assert (20, "paper") in found
    assert (20, "NUTS per shard, consensus") in found
    assert (1, "NUTS per shard, consensus") not in found
    assert all(m != 50 for m, _ in found)
    assert accuracy_scores.counts(gold, 10)
    assert not accuracy_scores.counts(gold, 11)


@pytest.mark.slow
def test_a_reference_run_is_made_once(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    gold = known_gold()
    first, again = (made.cached_chains("known", gold.model, gold.rows, gold.start, Lengths(100, 50, 2)) for _ in "ab")
    assert first["mu"].shape == (2, 50, 2)
    np.testing.assert_array_equal(first["mu"], again["mu"])
    assert capsys.readouterr().out.count("drawing the reference") == 1
    assert len(list((tmp_path / "epvi-benchmarks").iterdir())) == 1


def test_results_are_appended_to_a_file(tmp_path):
    gold, file = known_gold(), tmp_path / "results.csv"
    refusal = Result("known", True, 4, True, "paper", False, None, None, "no answer: refused")
    for found in (result("full", 0.25), refusal):
        accuracy.append(file, accuracy.record(found, gold, 7))
    lines = file.read_text().splitlines()
    assert lines[0] == ",".join(accuracy.FIELDS)
    assert len(lines) == 3
    assert ",0.25," in lines[1]
    assert "refused" in accuracy.line(refusal)
    assert "0.250" in accuracy.line(result("full", 0.25))
