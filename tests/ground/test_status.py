"""Statuses: a code tells programs how it ended, and whether the result can be used; the text goes on where it must."""

import json
import pickle

import pytest

from epvi.ground.status import Status, StatusCode


def test_a_code_says_whether_the_result_can_be_used():
    assert Status(StatusCode.CONVERGED, "converged.").ok
    assert not Status(StatusCode.FLAT_DIRECTION, "flat direction: ...").ok
    assert {code.ok for code in StatusCode} == {True, False}


def test_a_code_is_its_text():
    assert StatusCode("flat-direction") is StatusCode.FLAT_DIRECTION
    assert json.dumps([StatusCode.NO_MODE]) == '["no-mode"]'
    assert f"{StatusCode.EXACT}" == str(StatusCode.EXACT) == "exact"


@pytest.mark.parametrize("code", StatusCode)
def test_a_code_comes_back_from_another_process(code):
    again = pickle.loads(pickle.dumps(code))
    assert again is code
    assert again.ok == code.ok


def test_a_text_goes_on_where_its_full_stop_is():
    before = Status(StatusCode.MIXED, "mixed: 12 draws.")
    after = before.followed_by(StatusCode.FEW_DRAWS, ", but too few: draw more.")
    assert after == Status(StatusCode.FEW_DRAWS, "mixed: 12 draws, but too few: draw more.")
