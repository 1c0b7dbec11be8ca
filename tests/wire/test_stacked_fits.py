"""Fits of many shards in a few arrays: what comes out is what went in."""

import dataclasses
import pickle

import jax
import numpy as np
import pytest
from some_fits import some_fit

import epvi
from epvi.wire.shard_fit import ShardFit, informs
from epvi.wire.stacked_fits import StackedFits, stacked_fits


def fits(structure):
    made = [some_fit(k=2, structure=structure, shard=m) for m in (1, 2, 3)]
    differ = [{"num_rows": 10 * m, "gap": 0.1 * m, "seconds": 0.5 * m, "history": (float(m),)} for m in range(3)]
    hashed = [dataclasses.replace(one.made_of, rows=str(m) * 36) for m, one in enumerate(made)]
    return [
        dataclasses.replace(one, made_of=made_of, **own) for one, own, made_of in zip(made, differ, hashed, strict=True)
    ]


def same(a, b):
    if isinstance(a, epvi.GaussianMixture):
        both = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
        return a.structure == b.structure and all(np.array_equal(x, y) for x, y in both)
    # Repr, because NaN is not equal to itself.
    return repr(a) == repr(b)


@pytest.mark.parametrize("structure", [epvi.Full(), epvi.Diagonal(), epvi.Spherical()])
def test_fits_come_out_as_they_went_in(structure):
    one, two, three = fits(structure)
    before = [one, None, two, three, None]
    made = stacked_fits(before)
    assert isinstance(made, StackedFits)
    after = pickle.loads(pickle.dumps(made)).each()
    for a, b in zip(before, after, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            for field in dataclasses.fields(ShardFit):
                assert same(getattr(a, field.name), getattr(b, field.name)), field.name


def test_fits_with_other_parts_are_not_stacked():
    one, two, three = fits(epvi.Full())
    wider = dataclasses.replace(two, mixture=some_fit(k=3).mixture)
    told = dataclasses.replace(three, status=informs("a finding"), point=np.zeros(3))
    for made in ([one, wider], [one, told], [None, None], []):
        assert stacked_fits(made) == made
