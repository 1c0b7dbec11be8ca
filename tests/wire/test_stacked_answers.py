"""Answers of many shards in a few arrays: what comes out is what went in."""

import dataclasses
import pickle
from fractions import Fraction

import numpy as np
import pytest

from epvi.wire.answer import Derivatives, Expected, Scores, Variation
from epvi.wire.request import Asked
from epvi.wire.shard_fit import Provenance
from epvi.wire.stacked_answers import StackedScores, stacked, unstacked


def answer(m, *, moments=True, slopes=False):
    rng = np.random.default_rng(m)
    centres = Derivatives(rng.normal(size=2), rng.normal(size=(2, 3)), rng.normal(size=(2, 3, 3)))
    expected = Expected(rng.normal(size=(1, 4)), rng.normal(size=(1, 3)), rng.normal(size=(1, 3, 3)))
    return Scores(
        asked=Asked("digest", 5, 4, (1, 2)),
        shard=m,
        num_shards=3,
        label=f"site {m}",
        prior=Fraction(m, 6),
        num_rows=10 * m,
        made_of=Provenance(),
        values=rng.normal(size=5),
        errors=rng.random(5),
        echo=np.ones(3),
        centres=centres,
        rows=Variation(rng.normal(size=3), rng.normal(size=(3, 3))),
        moments=expected if moments else None,
        exact=m == 2,
        proper=True,
        passes=m,
        seconds=0.5 * m,
        slopes=rng.normal(size=(4, 3)) if slopes else None,
    )


def same(a, b):
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return np.array_equal(a, b)


@pytest.mark.parametrize(("moments", "slopes"), [(True, False), (False, False), (True, True), (False, True)])
def test_answers_come_out_as_they_went_in(moments, slopes):
    before = [answer(m, moments=moments, slopes=slopes) for m in (1, 2, 3)]
    made = stacked(before)
    assert isinstance(made, StackedScores)
    after = unstacked(pickle.loads(pickle.dumps(made)))
    for a, b in zip(before, after, strict=True):
        for field in dataclasses.fields(Scores):
            own, back = getattr(a, field.name), getattr(b, field.name)
            assert same(own, back) if isinstance(own, np.ndarray | tuple) else own == back, field.name


def test_answers_with_other_parts_are_not_stacked():
    assert not isinstance(stacked([answer(1), answer(2, slopes=True)]), StackedScores)
    made = [answer(1), answer(2, moments=False)]
    assert stacked(made) is made
    assert unstacked(made) is made
    assert unstacked(made[0]) == [made[0]]
