"""Reasons as values: the text of a certificate is composed of them, and its remedy is chosen by their codes."""

import types

import pytest

import epvi
from epvi.ground.status import StatusCode
from epvi.hub.trust.reasons import _REMEDIES, Fault, Reason, Verdict, headed, told
from epvi.hub.trust.verdict import when_refined

UNEVEN = Fault(Reason.UNEVEN_WEIGHTS, "the draws' weights are too uneven to correct it (3 effective draws)")
MISSING = Fault(Reason.MISSING_ROWS, "the rows of shard 8 are missing")


def some_posterior(structure, num_fits=2):
    parts = {"space": types.SimpleNamespace(exchangeable=()), "mixture": types.SimpleNamespace(structure=structure)}
    return types.SimpleNamespace(**parts, fits=[None] * num_fits, step=None, __dataclass_fields__={})


def test_the_words_of_verdicts_are_those_of_files():
    words = ["trust", "trust with corrected weights", "trust means and sds", "trust draws of NUTS", "do not trust"]
    assert list(Verdict) == words
    assert [verdict.status_code.ok for verdict in Verdict] == [True, True, True, True, False]
    assert Verdict.NOT.status_code is StatusCode.NOT_TRUSTED


def test_all_that_is_wrong_is_told_in_order_with_its_remedies():
    assert told([MISSING, UNEVEN]) == (
        "do not trust: the rows of shard 8 are missing; add them (posterior.update, epvi combine), or accept it as the"
        " posterior of the others (accept_missing=True, --accept-missing). Also: the draws' weights are too uneven to"
        " correct it (3 effective draws); refine it (refine=10, epvi refine)."
    )


def test_who_disagrees_is_said_with_the_verdict():
    assert told([MISSING], "shard 3 disagrees").startswith("do not trust, and shard 3 disagrees: the rows of shard 8")
    assert headed(Verdict.TRUST, "shard 3 disagrees") == "trust, but shard 3 disagrees"
    assert headed(Verdict.TRUST, "") == "trust"


def test_when_no_round_will_help_only_what_rounds_could_mend_has_another_remedy():
    text = when_refined(some_posterior(epvi.Full()), [MISSING, UNEVEN])
    assert "accept_missing=True" in text
    assert "refine it" not in text
    assert text.endswith(
        "more rounds do not help: take fewer shards, or another parametrisation of the model, or MCMC."
    )
    assert when_refined(some_posterior(epvi.Full()), [MISSING]) == told([MISSING])


def test_diagonal_covariances_and_a_single_shard_have_remedies_of_their_own():
    text = when_refined(some_posterior(epvi.Diagonal(), num_fits=1), [UNEVEN])
    assert "take full covariances (inference=epvi.NVI(covariance=epvi.Full())), or another parametrisation" in text
    assert "fewer shards" not in text


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_makes_a_sentence(reason):
    text = told([Fault(reason, "something was found")])
    assert text.startswith("do not trust: something was found")
    assert text.endswith(".")
    assert bool(_REMEDIES[reason]) is (reason is not Reason.OTHER)
