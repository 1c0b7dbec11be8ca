"""Shard fits as a site would send them, and changes to the record and the arrays of their files."""

from fractions import Fraction

import numpy as np
from some_supports import SUPPORTS

import epvi
from epvi.gaussian.mixture import Estimate
from epvi.ground.status import Status, StatusCode


def mixture(k, d, structure, seed=0):
    rng = np.random.default_rng(seed)
    covariances = rng.gamma(2.0, size=(k, *structure.user_shape(d)))
    if structure == epvi.Full():
        factors = rng.normal(size=(k, d, d))
        covariances = factors @ np.swapaxes(factors, 1, 2) + np.eye(d)
    weights = rng.dirichlet(np.ones(k))
    return epvi.GaussianMixture.from_covariances(rng.normal(size=(k, d)), covariances, weights)


def some_fit(k=3, structure=epvi.Full(), shard=2, support="positive"):  # noqa: B008 (a frozen choice)
    shape, kind, size = SUPPORTS[support]
    real = epvi.Parameter("w", (2,), SUPPORTS["real"][1])
    space = epvi.Space((real, epvi.Parameter("scale", shape, kind)))
    made_of = epvi.Provenance(
        model="regression",
        prior_values=(-1.5, float("nan"), 0.25),
        row_values=(-0.5, -2.25),
        fixed={"a": "0123456789abcdef"},
        columns={"x": ("age", "sex"), "y": ("num",)},
        standardised={"age": (54.0, 9.1)},
        levels={"sex": ("female", "male")},
        rows="f" * 32,
        inference={"name": "NVI", "num_components": 4, "covariance": None, "merge": True, "tolerance": 1e-4},
        key=(0, 7),
        version="0.1.0",
    )
    return epvi.ShardFit(
        mixture=mixture(k, 2 + size, structure),
        space=space,
        shard=shard,
        num_shards=6,
        label=f"{shard} of 6 (hospital = Zürich)",
        prior=Fraction(1, 6),
        num_rows=123,
        status=Status(StatusCode.CONVERGED, "converged: 3 components."),
        history=(-10.5, -9.25),
        elbo=Estimate(np.asarray(-9.0), np.asarray(0.125)),
        gap=0.03,
        passes=17,
        seconds=0.5,
        made_of=made_of,
    )


def entry(*path, value):
    def change(record, arrays):
        for name in path[:-1]:
            record = record[name]
        record[path[-1]] = value

    return change


def array(name, value):
    def change(record, arrays):
        arrays[name] = np.asarray(value)

    return change
