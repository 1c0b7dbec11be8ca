"""R-hat and effective sample sizes of chains beside ArviZ's, and what is said of chains that went wrong."""

import numpy as np
import numpyro.distributions as dist
import pytest
from arviz_stats.base.array import array_stats

import epvi
from epvi.gaussian.mixture import Estimate
from epvi.hub.trust.agreement import Accord, Agreement
from epvi.hub.trust.certify import Certificate, with_chains
from epvi.hub.trust.chains import Chains
from epvi.hub.trust.reasons import Fault, Reason, Verdict

NAMES = ("a", "b", "c")


def series(seed, chains=2, draws=1000, d=3, phi=0.5):
    rng = np.random.default_rng(seed)
    made = np.empty((chains, draws, d))
    made[:, 0] = rng.normal(size=(chains, d))
    for i in range(1, draws):
        made[:, i] = phi * made[:, i - 1] + np.sqrt(1 - phi**2) * rng.normal(size=(chains, d))
    return made


def chains_of(theta, divergences=0):
    return Chains(theta, divergences, 500, 1.0)


@pytest.mark.parametrize("heavy", [False, True])
def test_r_hat_and_effective_sizes_are_those_of_arviz(heavy):
    theta = series(0)
    theta = np.sinh(3 * theta) if heavy else theta
    theta[1, :, 1] = 1.5 * theta[1, :, 1] + 0.3
    made = chains_of(theta)
    for i in range(3):
        one = theta[..., i]
        assert made.r_hat[i] == pytest.approx(float(array_stats.rhat(one, chain_axis=0, draw_axis=1)), abs=1e-3)
        bulk = array_stats.ess(one, method="bulk", chain_axis=0, draw_axis=1)
        tail = array_stats.ess(one, method="tail", chain_axis=0, draw_axis=1, prob=(0.05, 0.95))
        least = min(float(bulk), float(tail))
        assert made.ess[i] == pytest.approx(least, rel=0.05)
    assert made.r_hat[1] > 1.01


def test_what_is_wrong_with_chains_is_said_by_name():
    good = series(1, phi=0.0)
    assert chains_of(good).fault(NAMES) == ""
    apart = good.copy()
    apart[1, :, 2] += 1.0
    assert "have not mixed (R-hat 1." in chains_of(apart).fault(NAMES)
    assert "in c)" in chains_of(apart).fault(NAMES)
    # The same mean, another scale: only the folded ranks tell.
    wide = good.copy()
    wide[1, :, 0] *= 3
    assert "in a)" in chains_of(wide).fault(NAMES)
    assert "effective draws of" in chains_of(good[:, :150]).fault(NAMES)
    assert chains_of(good, divergences=3).fault(NAMES) == "3 of 2,000 steps of NUTS diverged"
    assert chains_of(good, divergences=2).fault(NAMES) == ""
    stuck = good.copy()
    stuck[0, :, 1], stuck[1, :, 1] = 1.0, 2.0
    assert "R-hat inf in b" in chains_of(stuck).fault(NAMES)


def refused(flagged=()):
    agreed = Agreement(Accord.DISAGREE if flagged else Accord.AGREE, "as it is.", ("1", "2"), (1.0, 1e-9), flagged)
    none = Estimate(np.asarray(0.0), np.asarray(0.0))
    fault = Fault(Reason.UNEVEN_WEIGHTS, "weights are uneven")
    even = np.full(64, 1 / 64)
    return Certificate(
        *(Verdict.NOT, "do not trust: weights are uneven.", False, 5.0, 0.1, 2.0, 1.0, 1.0, (0.5, 2.0)),
        *(none, None, 0.0, agreed, np.zeros((64, 3)), even, even, (fault,)),
    )


SPACE = epvi.Space(tuple(epvi.Parameter(name, (), dist.constraints.real) for name in NAMES))


def test_chains_have_a_verdict_of_their_own():
    good = chains_of(series(1, phi=0.0))
    made = with_chains(refused(), good, SPACE, 0)
    assert made.verdict == Verdict.SAMPLED == "trust draws of NUTS"
    assert made.status.ok
    assert made.reasons == ()
    assert not made.corrects
    assert made.to_json()["chains"]["r_hat"] < 1.01
    assert "R-hat at most 1.0" in str(made)
    assert "k̂" not in str(made)
    assert (
        "trust draws of NUTS, but shard 1 and shard 2 disagree (p = 1e-09)"
        in with_chains(refused(("2",)), good, SPACE, 0).text
    )
    missed = with_chains(refused(), good, SPACE, 1)
    assert missed.verdict == Verdict.NOT
    assert missed.reasons == ("chains", "uneven-weights")
    assert "all but 1 of the modes" in missed.text
    few = with_chains(refused(), chains_of(good.theta[:, :100]), SPACE, 0)
    assert "take more warm-up and draws" in few.text
    assert not few.status.ok
