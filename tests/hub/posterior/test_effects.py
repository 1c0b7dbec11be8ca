"""The distribution of group effects given the other parameters: moments against draws, and files that lie about it."""

import numpy as np
import pytest
from numpyro.distributions import constraints

from epvi.gaussian.mixture import GaussianMixture
from epvi.gaussian.structures import Full
from epvi.hub.posterior.effects import Effects
from epvi.hub.posterior.file_effects import pack_effects, read_effects
from epvi.parameters.group_effects import GroupEffects
from epvi.parameters.space import Parameter, Space
from epvi.wire.envelope import Envelope, Malformed
from epvi.wire.record import Record

G = 4
SPACE = Space(
    (
        Parameter("w", (2,), constraints.real_vector),
        Parameter("ab", (G, 2), constraints.independent(constraints.real, 2)),
    )
)
RNG = np.random.default_rng(0)
EFFECTS = Effects(
    GroupEffects(("ab",), (0,), G),
    np.array([0.2, -0.1]),
    RNG.normal(size=(G, 2)),
    np.stack([RNG.normal(-1, 0.2, G), RNG.normal(0, 0.2, G), RNG.normal(-1, 0.2, G)], axis=1),
    RNG.normal(size=(G, 2, 2)),
    0.3 * RNG.normal(size=(G, 3, 2)),
)
MIXTURE = GaussianMixture(
    np.log([0.6, 0.4]),
    np.array([[0.1, 0.0], [0.6, -0.4]]),
    np.array([[[3.0, 0.0], [0.5, 4.0]], [[2.5, 0.0], [0.0, 5.0]]]),
    Full(),
)


def test_moments_are_those_of_draws():
    phi = np.asarray(MIXTURE.sample(200_000, seed=0))
    theta = EFFECTS.theta(SPACE, phi, np.random.default_rng(1))
    mean, sd = EFFECTS.moments(MIXTURE, np.zeros((0, 2)), np.zeros(0))
    drawn = theta[:, EFFECTS.which.places(SPACE)]
    # Five standard errors of means and sds of 200,000 draws.
    np.testing.assert_array_less(np.abs(drawn.mean(axis=0) - mean) / sd, 5 / np.sqrt(200_000))
    np.testing.assert_array_less(np.abs(drawn.std(axis=0) / sd - 1), 5 / np.sqrt(200_000))
    np.testing.assert_array_equal(theta[:, :2], phi)


def test_signed_draws_correct_the_moments():
    phi = np.asarray(MIXTURE.sample(5000, seed=0))
    # Weights of a mixture with the weights 0.4 and 0.6, minus its own.
    other = GaussianMixture(np.log([0.4, 0.6]), MIXTURE.means, MIXTURE.roots, Full())
    ratio = np.exp(np.asarray(other.log_density(phi)) - np.asarray(MIXTURE.log_density(phi)))
    mean, sd = EFFECTS.moments(MIXTURE, phi, ratio / ratio.sum() - 1 / 5000)
    wanted = EFFECTS.moments(other, np.zeros((0, 2)), np.zeros(0))
    np.testing.assert_allclose((mean - wanted[0]) / sd, 0, atol=0.05)
    np.testing.assert_allclose(sd / wanted[1], 1, atol=0.05)


def packed():
    record, arrays = pack_effects(SPACE, EFFECTS)
    return record, dict(arrays)


def read(record, arrays):
    shared = EFFECTS.which.shared_space(SPACE)
    return read_effects(Record(record), Envelope("posterior", record, arrays), shared)


def test_what_is_written_is_read():
    space, effects = read(*packed())
    assert space.signature() == SPACE.signature()
    assert effects.which == EFFECTS.which
    np.testing.assert_array_equal(effects.root_slope, EFFECTS.root_slope)


@pytest.mark.parametrize(
    "lie",
    [
        lambda record, arrays: record["effects"].update(names=["other"]),
        lambda record, arrays: record["effects"].update(names=["w"]),
        lambda record, arrays: record["effects"].update(axes=[1]),
        lambda record, arrays: record["effects"].update(num_levels=5),
        lambda record, arrays: arrays.update({"effects/mean": arrays["effects/mean"][:3]}),
        lambda record, arrays: arrays.update({"effects/root": 1e4 + arrays["effects/root"]}),
        lambda record, arrays: arrays.update({"effects/root_slope": np.full((G, 3, 2), np.nan)}),
        lambda record, arrays: arrays.pop("effects/centre"),
    ],
)
def test_lies_are_refused(lie):
    record, arrays = packed()
    lie(record, arrays)
    with pytest.raises(Malformed):
        read(record, arrays)
