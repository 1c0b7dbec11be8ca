"""The space of the parameters: every support there and back, its Jacobian against derivatives, and what is refused."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints
from quick import quick_for
from some_supports import BOUNDS, SUPPORTS

from epvi import EpviError, Parameter, Space

# Each of these has a near relative among them; there and back, and the Jacobian, run for them with the slow tests.
RELATIVES = [
    "real",
    "real_vector",
    "nonnegative",
    "softplus_positive",
    "interval",
    "open_interval",
    "unit_interval",
    "greater_than",
    "greater_than_eq",
    "less_than_eq",
    "simplex",
    "positive_ordered_vector",
    "softplus_lower_cholesky",
    "scaled_unit_lower_cholesky",
    "positive_semidefinite",
    "zero_sum",
    "independent",
]
NAMES = quick_for(SUPPORTS, SUPPORTS.keys() - set(RELATIVES))
# Those that take longest to compile.
MATRICES = {"positive_definite", "corr_matrix", "lower_cholesky", "zero_sum both ways"}


def alone(name):
    shape, support, _ = SUPPORTS[name]
    return Space((Parameter("p", shape, support),))


def free(name, values):
    """The entries of values (..., *shape) that determine the others, flattened."""
    shape, _, _ = SUPPORTS[name]
    flat = values.reshape(*values.shape[: values.ndim - len(shape)], -1)
    chosen = np.ones(shape, bool)
    if name.startswith("simpl"):
        chosen[..., -1] = False
    elif "corr" in name:
        chosen = chosen & np.tri(shape[-1], k=-1, dtype=bool)
    elif "cholesky" in name or "definite" in name:
        chosen = chosen & np.tri(shape[-1], dtype=bool)
    return flat[..., chosen.ravel()]


def log_jacobian(space, theta):
    with jax.enable_x64(True):
        return float(space.log_jacobian(jnp.asarray(theta)))


def test_a_parameter_without_coordinates_has_its_one_value_at_every_point():
    space = Space((Parameter("root", (1, 1), constraints.corr_cholesky), Parameter("w", (2,), constraints.real)))
    values = space.constrain(np.zeros((3, 4, 2)))
    np.testing.assert_array_equal(values["root"], np.ones((3, 4, 1, 1)))
    assert values["w"].shape == (3, 4, 2)


@pytest.mark.parametrize("name", quick_for(SUPPORTS, SUPPORTS.keys() - set(RELATIVES) - MATRICES))
def test_values_go_there_and_back_with_any_leading_axes(name):
    shape, support, size = SUPPORTS[name]
    space = alone(name)
    assert space.dim == size
    theta = np.random.default_rng(0).normal(size=(2, 3, size))
    values = space.constrain(theta)
    assert values["p"].shape == (2, 3, *shape)
    assert values["p"].dtype == np.float64
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        assert np.all(support(jnp.asarray(values["p"])))
    np.testing.assert_allclose(space.unconstrain(values), theta, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_the_jacobian_is_the_determinant_of_the_derivatives(name):
    space = alone(name)
    with jax.enable_x64(True):
        derivatives = jax.jit(jax.jacfwd(lambda theta: space.values(theta)["p"]))
        written = jax.jit(space.log_jacobian)
        for seed in range(3):
            theta = jnp.asarray(np.random.default_rng(seed).normal(size=space.dim))
            slopes = free(name, np.moveaxis(np.asarray(derivatives(theta)), -1, 0))
            # Values with a sum of zero have one coordinate too many: their volume is that of the plane they lie in.
            expected = 0.5 * np.linalg.slogdet(slopes @ slopes.T)[1]
            np.testing.assert_allclose(written(theta), expected, rtol=1e-9, atol=1e-9)


def test_one_point_has_values_without_leading_axes():
    space = Space((Parameter("a", (), constraints.positive), Parameter("b", (2,), constraints.real)))
    values = space.constrain(np.array([0.0, 1.0, 2.0]))
    assert {name: value.shape for name, value in values.items()} == {"a": (), "b": (2,)}
    assert float(values["a"]) == 1.0
    assert space.unconstrain({"a": 1, "b": [1, 2]}).tolist() == [0, 1, 2]


MANY = Space(
    (
        Parameter("scale", (), constraints.positive),
        Parameter("w", (2, 2), constraints.real),
        Parameter("p", (3,), constraints.simplex),
        Parameter("u", (1,), constraints.unit_interval),
    )
)


def test_parameters_stand_in_their_order():
    assert MANY.dim == 8
    assert MANY.slices == {"scale": slice(0, 1), "w": slice(1, 5), "p": slice(5, 7), "u": slice(7, 8)}
    assert [MANY.coordinate(i) for i in (0, 1, 4, 5, 7)] == ["scale", "w[0,0]", "w[1,1]", "p[0]", "u[0]"]
    assert MANY.describe() == "scale, w (2, 2), p (3,), u (1,)"
    assert [label for _, label in MANY.by_name["w"].elements()] == ["w[0,0]", "w[0,1]", "w[1,0]", "w[1,1]"]
    assert list(MANY.by_name["scale"].elements()) == [((), "scale")]
    theta = np.random.default_rng(0).normal(size=(5, 8))
    values = MANY.constrain(theta)
    np.testing.assert_allclose(values["scale"], np.exp(theta[:, 0]))
    np.testing.assert_array_equal(values["w"], theta[:, 1:5].reshape(5, 2, 2))
    np.testing.assert_allclose(MANY.unconstrain(values), theta, rtol=1e-12, atol=1e-12)
    apart = [Space((parameter,)) for parameter in MANY.parameters]
    total = sum(log_jacobian(one, theta[0][MANY.slices[one.parameters[0].name]]) for one in apart)
    np.testing.assert_allclose(log_jacobian(MANY, theta[0]), total, rtol=1e-12)
    assert MANY.constrain(np.zeros((0, 8)))["w"].shape == (0, 2, 2)


def test_spaces_are_the_same_when_their_coordinates_mean_the_same():
    interval = constraints.interval(*BOUNDS)

    def signature(name="p", shape=(2,), support=interval, exchangeable=()):
        return Space((Parameter(name, shape, support),), exchangeable).signature()

    assert signature() == signature(support=constraints.interval(BOUNDS[0].copy(), jnp.asarray(BOUNDS[1])))
    assert signature(support=constraints.positive) == signature(support=constraints.positive)
    others = [
        signature(name="q"),
        signature(shape=(3, 2)),
        signature(support=constraints.interval(BOUNDS[0], BOUNDS[1] + 1)),
        signature(support=constraints.open_interval(*BOUNDS)),
        signature(support=constraints.positive),
        signature(support=constraints.softplus_positive),
        signature(support=constraints.real),
        signature(support=constraints.real, exchangeable=(("p",),)),
    ]
    for one, other in itertools.combinations([signature(), *others], 2):
        assert one != other
    parts = MANY.parameters
    assert Space(parts).signature() != Space(parts[::-1]).signature()


GOOD = {"scale": 1.0, "w": np.zeros((2, 2)), "p": [0.2, 0.3, 0.5], "u": [0.5]}
TWO = Space((Parameter("a", (), constraints.real), Parameter("b", (2,), constraints.real)))
BAD = {
    "missing name": (lambda: MANY.unconstrain({"scale": 1.0}), "values name scale: pass exactly scale, w, p, u"),
    "no names": (lambda: MANY.unconstrain({}), "values name nothing: pass exactly scale"),
    "unknown name": (lambda: MANY.unconstrain(GOOD | {"v": 1.0}), "values name .*, v: pass exactly scale"),
    "shape": (lambda: MANY.unconstrain(GOOD | {"w": np.zeros(2)}), r"w has shape \(2,\): .* must be \(2, 2\)"),
    "leading axes": (lambda: TWO.unconstrain({"a": [1, 2], "b": np.zeros((3, 2))}), r"axes \[\(2,\), \(3,\)\]"),
    "one without leading axes": (lambda: TWO.unconstrain({"a": [1], "b": [1, 2]}), "different leading axes"),
    "text": (lambda: MANY.unconstrain(GOOD | {"w": [["a", "b"]] * 2}), "w cannot be read as an array of numbers"),
    "NaN": (lambda: MANY.unconstrain(GOOD | {"u": [np.nan]}), "u has 1 NaN or infinite"),
    "theta's length": (lambda: MANY.constrain(np.zeros((3, 7))), r"theta has shape \(3, 7\)"),
    "theta without axes": (lambda: MANY.constrain(0.0), r"theta has shape \(\)"),
    "theta of text": (lambda: MANY.constrain("abc"), "theta cannot be read"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_values_get_one_sentence(name):
    call, sentence = BAD[name]
    with pytest.raises(EpviError, match=sentence) as error:
        call()
    assert "\n" not in str(error.value)


OUTSIDE = {
    "positive": ((), constraints.positive, -1.0),
    "edge of positive": ((), constraints.positive, 0.0),
    "one of a batch": ((), constraints.positive, [1.0, -1.0, 2.0]),
    "softplus_positive": ((), constraints.softplus_positive, -1.0),
    "above an interval": ((2,), constraints.interval(-1.0, 3.0), [0.0, 4.0]),
    "below one of several": ((2,), constraints.interval(*BOUNDS), [0.5, -2.0]),
    "edge of the unit interval": ((), constraints.unit_interval, 1.0),
    "greater_than": ((), constraints.greater_than(2.0), 1.0),
    "less_than": ((), constraints.less_than(2.0), 3.0),
    "circular": ((), constraints.circular, 4.0),
    "ordered_vector": ((3,), constraints.ordered_vector, [1.0, 3.0, 2.0]),
    "positive_ordered_vector": ((2,), constraints.positive_ordered_vector, [-1.0, 2.0]),
    "diagonal of lower_cholesky": ((2, 2), constraints.lower_cholesky, [[-1.0, 0.0], [0.3, 1.0]]),
    "positive_definite": ((2, 2), constraints.positive_definite, [[1.0, 2.0], [2.0, 1.0]]),
    "corr_cholesky": ((2, 2), constraints.corr_cholesky, [[1.0, 0.0], [2.0, 2.0]]),
    # A bijection's inverse takes these without complaint, and gives another value back.
    "simplex that sums to 0.6": ((3,), constraints.simplex, [0.2, 0.2, 0.2]),
    "simplex with a negative share": ((3,), constraints.simplex, [0.7, 0.7, -0.4]),
    "rows of corr_cholesky": ((2, 2), constraints.corr_cholesky, [[2.0, 0.0], [0.1, 0.2]]),
    "covariance for corr_matrix": ((2, 2), constraints.corr_matrix, [[3.0, 1.0], [1.0, 4.0]]),
    "upper lower_cholesky": ((2, 2), constraints.lower_cholesky, [[1.0, 0.5], [0.3, 1.0]]),
    "asymmetric matrix": ((2, 2), constraints.positive_definite, [[2.0, 0.5], [0.3, 1.0]]),
    "l1_ball": ((2,), constraints.l1_ball, [3.0, 1.0]),
    "zero_sum": ((3,), constraints.zero_sum(1), [1.0, 2.0, 3.0]),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_values_outside_the_support_are_refused(name):
    shape, support, value = OUTSIDE[name]
    with pytest.raises(EpviError, match="outside_name is outside or on the edge of its support"):
        Space((Parameter("outside_name", shape, support),)).unconstrain({"outside_name": value})


def test_float32_values_of_a_support_are_inside_it():
    theta = np.random.default_rng(0).normal(size=(20, MANY.dim))
    values = {name: value.astype(np.float32) for name, value in MANY.constrain(theta).items()}
    np.testing.assert_allclose(MANY.unconstrain(values), theta, rtol=1e-4, atol=1e-4)
