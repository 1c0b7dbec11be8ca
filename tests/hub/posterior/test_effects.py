"""The distribution of group effects given the other parameters: moments against draws, and files that lie about it."""

import dataclasses

import numpy as np
import pytest
from numpyro.distributions import constraints

from epvi.gaussian.mixture import GaussianMixture
from epvi.gaussian.structures import Full
from epvi.hub.posterior.effect_moments import SharedMoments, calibrated, moments_of, quantiles_of
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
    np.array([[0.2, -0.1]]),
    np.ones(1),
    RNG.normal(size=(1, G, 2)),
    np.stack([RNG.normal(-1, 0.2, G), RNG.normal(0, 0.2, G), RNG.normal(-1, 0.2, G)], axis=1)[None],
    np.stack([RNG.uniform(-1, 1, (G, 2)), RNG.uniform(1.6, 2.5, (G, 2))], axis=-1)[None],
    RNG.normal(size=(G, 2, 2)),
    0.3 * RNG.normal(size=(G, 3, 2)),
)
MIXTURE = GaussianMixture(
    np.log([0.6, 0.4]),
    np.array([[0.1, 0.0], [0.6, -0.4]]),
    np.array([[[3.0, 0.0], [0.5, 4.0]], [[2.5, 0.0], [0.0, 5.0]]]),
    Full(),
)


NOTHING = np.zeros((0, 2)), np.zeros(0)


def known(mixture, phi=NOTHING[0], signed=NOTHING[1]):
    return SharedMoments(mixture, phi, signed, np.asarray(mixture.mean()), np.asarray(mixture.sd()))


def curved(number=400):
    """Effects whose moments are known at draws of φ, where they are no linear functions of it."""
    phi = np.asarray(MIXTURE.sample(number, seed=3))
    return Effects.regressed(EFFECTS.which, phi, np.full(number, 1 / number), *bent(phi), np.zeros((number, G, 2, 2)))


def bent(phi):
    mean = EFFECTS.means(phi) + np.sin(2 * phi[:, :1, None])
    root = EFFECTS.root + 0.5 * np.cos(phi @ np.array([1.0, 2.0]))[:, None, None]
    return mean, root


def test_moments_are_those_of_draws():
    phi = np.asarray(MIXTURE.sample(200_000, seed=0))
    theta = EFFECTS.theta(SPACE, phi, np.random.default_rng(1))
    mean, sd = moments_of(EFFECTS, known(MIXTURE))
    drawn = theta[:, EFFECTS.which.places(SPACE)]
    # Five standard errors of means and sds of 200,000 draws.
    np.testing.assert_array_less(np.abs(drawn.mean(axis=0) - mean) / sd, 5 / np.sqrt(200_000))
    np.testing.assert_array_less(np.abs(drawn.std(axis=0) / sd - 1), 5 / np.sqrt(200_000))
    np.testing.assert_array_equal(theta[:, :2], phi)
    probabilities = [0.05, 0.5, 0.95]
    at = quantiles_of(EFFECTS, known(MIXTURE), (mean, sd), probabilities, (0,))
    wanted = np.moveaxis(np.quantile(drawn, probabilities, axis=0), 0, -1)
    # A quantile in the tail of 200,000 draws has a standard error of 0.005 sds.
    np.testing.assert_allclose((at - wanted) / sd[..., None], 0, atol=0.03)


def test_the_density_is_that_of_draws():
    # With one level, of one effect, and φ fixed: the density integrates to 1, and its moments are those of draws.
    one = GroupEffects(("a",), (0,), 1)
    space = Space((Parameter("w", (1,), constraints.real_vector), Parameter("a", (1,), constraints.real_vector)))
    effects = Effects(
        one,
        np.zeros((1, 1)),
        np.ones(1),
        np.array([[[0.5]]]),
        np.array([[[-0.3]]]),
        np.array([[[[-0.9, 1.4]]]]),
        np.zeros((1, 1, 1)),
        np.zeros((1, 1, 1)),
    )
    mixture = GaussianMixture(np.zeros(1), np.zeros((1, 1)), np.ones((1, 1, 1)), Full())
    z = np.linspace(-6, 5, 2201)
    theta = np.stack([np.zeros_like(z), z], axis=1)
    density = np.exp(effects.log_density(space, mixture, theta) - np.asarray(mixture.log_density(np.zeros((1, 1)))))
    step = z[1] - z[0]
    np.testing.assert_allclose(step * np.sum(density), 1, atol=1e-4)
    mean = step * density @ z
    sd = np.sqrt(step * density @ (z - mean) ** 2)
    skewness = step * density @ (z - mean) ** 3 / sd**3
    np.testing.assert_allclose([mean, sd, skewness], [0.5, np.exp(-0.3), -0.9], atol=0.02)


def test_signed_draws_correct_the_moments():
    phi = np.asarray(MIXTURE.sample(5000, seed=0))
    # Weights of a mixture with the weights 0.4 and 0.6, minus its own.
    other = GaussianMixture(np.log([0.4, 0.6]), MIXTURE.means, MIXTURE.roots, Full())
    ratio = np.exp(np.asarray(other.log_density(phi)) - np.asarray(MIXTURE.log_density(phi)))
    mean, sd = moments_of(EFFECTS, known(MIXTURE, phi, ratio / ratio.sum() - 1 / 5000))
    wanted = moments_of(EFFECTS, known(other))
    np.testing.assert_allclose((mean - wanted[0]) / sd, 0, atol=0.05)
    np.testing.assert_allclose(sd / wanted[1], 1, atol=0.05)


def test_moments_at_supports_are_averaged():
    effects, phi = curved(), np.asarray(MIXTURE.sample(200_000, seed=0))
    mean, root = bent(phi)
    variance = np.stack([np.exp(2 * root[..., 0]), root[..., 1] ** 2 + np.exp(2 * root[..., 2])], axis=-1)
    wanted = mean.mean(axis=0), np.sqrt(variance.mean(axis=0) + mean.var(axis=0))
    found = moments_of(effects, known(MIXTURE))
    # The means and sds of φ are exact: what is left of the Monte Carlo error of 400 supports is that of the curvature.
    np.testing.assert_allclose((found[0] - wanted[0]) / wanted[1], 0, atol=0.03)
    np.testing.assert_allclose(found[1] / wanted[1], 1, atol=0.03)
    drawn = mean + np.einsum("ngij,ngj->ngi", _lower(root), np.random.default_rng(2).standard_normal(mean.shape))
    at = quantiles_of(effects, known(MIXTURE), found, [0.1, 0.9], (0,))
    exact = np.moveaxis(np.quantile(drawn, [0.1, 0.9], axis=0), 0, -1)
    np.testing.assert_allclose((at - exact) / wanted[1][..., None], 0, atol=0.08)


def _lower(root):
    made = np.zeros((*root.shape[:2], 2, 2))
    made[..., 0, 0], made[..., 1, 0], made[..., 1, 1] = np.exp(root[..., 0]), root[..., 1], np.exp(root[..., 2])
    return made


def test_moments_at_a_support_are_those_known_there():
    effects = curved()
    chosen = np.array([7, 3, 7, 399])
    mean, root = bent(effects.supports[chosen])
    np.testing.assert_array_equal(effects.means(effects.supports[chosen]), mean)
    np.testing.assert_allclose(effects.roots(effects.supports[chosen]), _lower(root), rtol=1e-12)
    # Between supports they are extended from the nearest one.
    phi = np.asarray(MIXTURE.sample(200, seed=9))
    assert np.sqrt(np.mean((effects.means(phi) - bent(phi)[0]) ** 2)) < 0.1


def test_calibrated_weights_have_the_moments():
    points, weights = RNG.normal(size=(300, 3)), RNG.dirichlet(np.full(300, 2.0))
    mean, sd = np.array([0.1, -0.05, 0.0]), np.array([1.1, 0.95, 1.0])
    made = calibrated(points, weights, mean, sd)
    np.testing.assert_allclose([made.sum(), *(made @ points)], [1, *mean], atol=1e-9)
    np.testing.assert_allclose(np.sqrt(made @ (points - mean) ** 2), sd, rtol=1e-9)
    few = np.full(8, 1 / 8)
    np.testing.assert_array_equal(calibrated(points[:8], few, mean, sd), few)


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
    for field in dataclasses.fields(effects)[1:]:
        np.testing.assert_array_equal(getattr(effects, field.name), getattr(EFFECTS, field.name))


@pytest.mark.parametrize(
    "lie",
    [
        lambda record, arrays: record["effects"].update(names=["other"]),
        lambda record, arrays: record["effects"].update(names=["w"]),
        lambda record, arrays: record["effects"].update(axes=[1]),
        lambda record, arrays: record["effects"].update(num_levels=5),
        lambda record, arrays: arrays.update({"effects/mean": arrays["effects/mean"][:, :3]}),
        lambda record, arrays: arrays.update({"effects/root": 1e4 + arrays["effects/root"]}),
        lambda record, arrays: arrays.update({"effects/root_slope": np.full((G, 3, 2), np.nan)}),
        lambda record, arrays: arrays.pop("effects/supports"),
        lambda record, arrays: arrays.update({"effects/shape": arrays["effects/shape"][..., :1]}),
        lambda record, arrays: arrays.update({"effects/weights": np.full(1, 0.5)}),
        lambda record, arrays: arrays.update({"effects/mean": np.zeros((0, 2**44, 1))}),
    ],
)
def test_lies_are_refused(lie):
    record, arrays = packed()
    lie(record, arrays)
    with pytest.raises(Malformed):
        read(record, arrays)


def layered():
    """Effects of four groups given φ and the effects of two larger ones, which are known given φ."""
    space = Space((*SPACE.parameters, Parameter("c", (2,), constraints.real_vector)))
    rng = np.random.default_rng(4)
    phi = np.asarray(MIXTURE.sample(200, seed=3))
    weights = np.full(200, 1 / 200)
    larger = (phi[:, :1, None] * np.array([[[1.0], [-0.5]]]), np.full((200, 2, 1), -0.7), np.zeros((200, 2, 1, 2)))
    given = Effects.regressed(GroupEffects(("c",), (0,), 2), phi, weights, *larger)
    shared = EFFECTS.which.shared_space(space)
    supports = given.theta(shared, phi, rng)
    mean = np.tanh(supports[:, :1, None] + supports[:, 2:3, None]) * np.ones((1, G, 2))
    root = np.tile(np.array([-1.0, 0.1, -0.5]), (200, G, 1))
    made = Effects.regressed(EFFECTS.which, supports, weights, mean, root, np.zeros((200, G, 2, 2)))
    return space, dataclasses.replace(made, given=given)


def test_effects_of_larger_groups_are_part_of_what_effects_are_given():
    space, effects = layered()
    assert effects.names == ("c", "ab")
    assert effects.num_effects == 2 + 2 * G
    assert [one.name for one in effects.product_space(space).parameters] == ["w"]
    theta = effects.theta(space, effects.supports[:50], np.random.default_rng(0))
    shared = effects.which.shared_space(space)
    places = effects.which.places(space)
    below = theta[:, np.setdiff1d(np.arange(space.dim), places)]
    np.testing.assert_array_equal(below, effects.supports[:50])
    given_all = effects.given.log_density(shared, MIXTURE, below)
    # Groups given all else are Gaussian here.
    away = theta[:, places] - effects.means(below)
    white = np.linalg.solve(effects.roots(below), away[..., None])[..., 0]
    log_dets = np.log(np.diagonal(effects.roots(below), axis1=-2, axis2=-1))
    alone = np.sum(-0.5 * white**2 - log_dets - 0.5 * np.log(2 * np.pi), axis=(1, 2))
    np.testing.assert_allclose(effects.log_density(space, MIXTURE, theta), given_all + alone, rtol=1e-9)


def test_a_file_has_the_effects_of_larger_groups():
    space, effects = layered()
    record, arrays = pack_effects(space, effects)
    made = Envelope("posterior", record, arrays)
    found, read = read_effects(Record(record), made, effects.product_space(space))
    assert found.signature() == space.signature()
    np.testing.assert_array_equal(read.given.mean, effects.given.mean)
    np.testing.assert_array_equal(read.supports, effects.supports)
    fewer = {name: array[:100] if name.startswith("given") else array for name, array in arrays.items()}
    for name in ("given/effects/mean_slope", "given/effects/root_slope"):
        fewer[name] = arrays[name]
    fewer["given/effects/weights"] = np.full(100, 0.01)
    with pytest.raises(Malformed, match="different supports"):
        read_effects(Record(record), Envelope("posterior", record, fewer), effects.product_space(space))
