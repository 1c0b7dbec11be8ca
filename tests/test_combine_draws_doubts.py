"""What draws can hide, and what healthy ones must not be accused of: every doubt of `combine_draws`, and its remedy."""

import numpy as np
import pytest
import xarray
from sentences import refused

import epvi


def healthy(seed, shards=4, n=400, d=2):
    """Standard normal draws (shards, n, d): their product is N(0, I / shards)."""
    return np.random.default_rng(seed).normal(size=(shards, n, d))


@pytest.mark.parametrize(
    ("method", "d"),
    [(epvi.Nonparametric(), 1), (epvi.Parametric(epvi.Diagonal()), 5), (epvi.Weierstrass(epvi.Diagonal()), 5)],
    ids=repr,
)
def test_computed_parameters_are_no_trouble_to_diagonal_covariances(method, d):
    draws = [np.concatenate([x, -x.sum(axis=1, keepdims=True)], axis=1) for x in healthy(0, shards=2, n=800, d=d)]
    assert epvi.combine_draws(draws, method).status.ok


def labelled(x, dims=("feature", "group"), feature=("age", "dose")):
    return xarray.Dataset(
        {"w": (("chain", "draw", *dims), x.reshape(4, -1, 2, 2))}, coords={"feature": list(feature), "group": [0, 1]}
    )


def test_axes_are_the_same_at_every_shard():
    one, other = healthy(0, shards=2, d=4)
    assert epvi.combine_draws([labelled(one), labelled(other)], epvi.Parametric()).theta.shape == (400, 4)
    for feature in (("dose", "age"), ("age", "mass")):
        moved = [labelled(one), labelled(other, feature=feature)]
        refused(lambda moved=moved: epvi.combine_draws(moved, epvi.Parametric()), "shard 1's w has .* along feature")
    swapped = [labelled(one), labelled(other, dims=("group", "feature"))]
    refused(
        lambda: epvi.combine_draws(swapped, epvi.Parametric()), r"shard 1's w has dimensions \['group', 'feature'\]"
    )


def test_chains_that_were_stacked_are_not_taken_for_parameters():
    stacked = [labelled(x).stack(sample=("chain", "draw")) for x in healthy(0, shards=2, d=4)]
    assert stacked[0]["w"].dims[-1] == "sample"
    for data in (stacked, [one["w"] for one in stacked]):
        refused(lambda data=data: epvi.combine_draws(data, epvi.Parametric()), "shard 0's w has no dimensions chain")
    arrays = [labelled(x)["w"] for x in healthy(0, shards=2, d=4)]
    assert epvi.combine_draws(arrays, epvi.Parametric()).draws["w"].shape == (400, 2, 2)
