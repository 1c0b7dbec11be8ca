"""Which fits belong together: fingerprints of models and rows, and what `combine` makes of them."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from sentences import refused

import epvi
from epvi.hub.agreement.compatibility import Known
from epvi.site.derivatives.passes import programs_of
from epvi.site.tasks.fingerprint import _mixed, hash_each, hash_fixed, hash_rows, model_values
from epvi.wire.shard_fit import Provenance

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 2)).astype(np.float32)
ROWS = {"x": X, "y": (RNG.random(80) < 0.5).astype(np.int64)}
FIRST, SECOND = ({name: column[m::2] for name, column in ROWS.items()} for m in range(2))
QUICK = epvi.NVI(1, num_starts=2, num_draws=16)
WIDE = {name: column.astype(np.float64) for name, column in SECOND.items()}


def prior_of(scale):
    return dist.Normal(0.0, scale).expand([2]).to_event(1)


def model_with(scale=1.0, temperature=1.0):
    def model(x, y=None):
        w = numpyro.sample("w", prior_of(scale))
        numpyro.sample("y", dist.Bernoulli(logits=temperature * (x @ w)), obs=y)

    return model


@epvi.Model
def other_words(y, x):
    """The same model, written by someone else: another text, another distribution's name, a plate, a deterministic."""
    w = numpyro.sample("w", dist.MultivariateNormal(jnp.zeros(2), scale_tril=jnp.eye(2)))
    eta = numpyro.deterministic("eta", jnp.einsum("ni,i->n", x, w))
    with numpyro.plate("everyone", x.shape[0]):
        numpyro.sample("answer", dist.BernoulliProbs(1 / (1 + jnp.exp(-eta))), obs=y)


def with_fixed(x, y=None, *, scale=1.0, levels=("a", "b")):
    w = numpyro.sample("w", prior_of(scale))
    numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


@functools.cache
def fitted(model, number=1, like="first"):
    rows = {"first": FIRST, "second": SECOND, "wide": WIDE}[like]
    return epvi.fit_shard(model, rows, f"{number}/2", inference=QUICK)


# One object, so that what is compiled for it is compiled once.
ONE = epvi.Model(model_with())


def test_the_same_rows_in_another_order_under_another_number_are_refused():
    again = epvi.fit_shard(ONE, {name: column[::-1] for name, column in FIRST.items()}, "2/2", inference=QUICK)
    refused(lambda: epvi.combine([fitted(ONE), again]), "shard 1 of 2 and shard 2 of 2 were fitted to the same rows")


def test_one_number_for_two_shards_is_told_from_one_shard_twice():
    refused(lambda: epvi.combine([fitted(ONE), fitted(ONE)]), "is there twice, and its rows would count twice")
    other = fitted(ONE, 1, "second")
    refused(lambda: epvi.combine([fitted(ONE), other]), "is there twice, with other rows, so one has the wrong number")


def test_the_hash_of_rows_is_that_of_their_values():
    made = hash_rows(FIRST, "key")
    assert len(made) == 36
    assert hash_rows(SECOND, "key")[:4] == made[:4] != hash_rows(FIRST, "another")[:4]
    order = np.random.default_rng(1).permutation(40)
    assert hash_rows({name: FIRST[name][order] for name in reversed(FIRST)}, "key") == made
    assert hash_rows({"x": FIRST["x"].astype(np.float64), "y": FIRST["y"].astype(np.int8)}, "key") == made
    assert hash_rows(FIRST | {"y": FIRST["y"].astype(bool)}, "key") == made
    assert hash_rows({"x": np.zeros((3, 2))}, "") == hash_rows({"x": -np.zeros((3, 2))}, "")


def changed_value():
    x = FIRST["x"].copy()
    x[7, 1] = np.nextafter(x[7, 1], np.float32(9))
    return {"x": x}


def swapped_labels():
    y = FIRST["y"].copy()
    i, j = np.flatnonzero(y == 0)[0], np.flatnonzero(y == 1)[0]
    y[[i, j]] = y[[j, i]]
    return {"y": y}


OTHER_ROWS = {
    "another key": lambda: (FIRST, "other"),
    "one value the least bit larger": lambda: (FIRST | changed_value(), "key"),
    "two labels swapped": lambda: (FIRST | swapped_labels(), "key"),
    "columns swapped": lambda: (FIRST | {"x": FIRST["x"][:, ::-1]}, "key"),
    "a row less": lambda: ({name: column[1:] for name, column in FIRST.items()}, "key"),
    "a row twice": lambda: ({name: column[[0, *range(40)]] for name, column in FIRST.items()}, "key"),
    "another name": lambda: ({"z": FIRST["x"], "y": FIRST["y"]}, "key"),
}


@pytest.mark.parametrize("name", OTHER_ROWS)
def test_other_rows_have_another_hash(name):
    rows, key = OTHER_ROWS[name]()
    assert hash_rows(rows, key) != hash_rows(FIRST, "key")


def test_labels_swapped_between_rows_of_a_plan_of_few_values_never_collide():
    x = np.array(np.meshgrid([0, 1], [0, 1], [0, 1], [0, 1])).reshape(4, -1).T.repeat(4, axis=0)
    rng = np.random.default_rng(1)
    labels = [rng.permutation(np.arange(64) % 2) for _ in range(2000)]
    counts = {tuple(np.add.reduceat(y, np.arange(0, 64, 4))) for y in labels}
    assert len({hash_rows({"x": x, "y": y}, "") for y in labels}) == len(counts)


def tables():
    """Rows of all kinds of shapes, in more than one block, with values that all of these types can hold."""
    rng = np.random.default_rng(1)
    for n, tail in ((1, ()), (300, (1,)), (40_000, (7,)), (7_000, (2, 3, 3)), (700, (1000,)), (9, (0,))):
        yield {"x": rng.integers(0, 2, (n, *tail)), "y": rng.integers(0, 2, n)}


def test_the_hash_of_rows_does_not_depend_on_types_order_or_memory(tmp_path):
    rng = np.random.default_rng(2)
    for rows in tables():
        made = hash_rows(rows, "key")
        for kind in (bool, np.int8, np.uint64, np.float16, np.float32, np.float64, np.longdouble):
            assert hash_rows(rows | {"x": rows["x"].astype(kind)}, "key") == made
        assert hash_rows(rows | {"x": np.asfortranarray(rows["x"])}, "key") == made
        order = rng.permutation(len(rows["y"]))
        assert hash_rows({name: column[order] for name, column in rows.items()}, "key") == made
        np.save(tmp_path / "x.npy", rows["x"].astype(np.float32))
        if rows["x"].size:
            assert hash_rows(rows | {"x": np.load(tmp_path / "x.npy", mmap_mode="r")}, "key") == made


def test_any_value_changed_in_any_place_changes_the_hash():
    rng = np.random.default_rng(2)
    for rows in tables():
        x = rng.normal(size=rows["x"].shape)
        made = {hash_rows(rows | {"x": x}, "key")}
        places = rng.choice(x.size, min(x.size, 12), replace=False)
        for place in places:
            moved = x.copy()
            moved.flat[place] = np.nextafter(moved.flat[place], 9)
            made.add(hash_rows(rows | {"x": moved}, "key"))
        assert len(made) == 1 + len(places)


def test_every_float64_has_a_hash_of_its_own():
    small, large = 5e-324 * 0x3F800000, 2.0 * float(np.finfo(np.float32).max)
    values = [0, 1, 1 / 3, np.float32(1 / 3), small, -small, 5e-324, 1e-45, 1e-40, 1e-300, large, -large, 1e300, 2**53]
    for num in (1, 2, 3):
        assert len({hash_rows({"x": np.full((4, num), value, np.float64)}, "") for value in values}) == len(values)
        assert hash_rows({"x": np.full((4, num), 2**53)}, "") == hash_rows({"x": np.full((4, num), 2.0**53)}, "")


def test_rows_with_and_without_values_that_float32_rounds_are_one_table_in_any_order():
    x = np.where(np.random.default_rng(1).random((500, 3)) < 0.2, 1 / 3, np.arange(3.0))
    made = hash_rows({"x": x}, "key")
    assert hash_rows({"x": x[np.argsort(x[:, 0])]}, "key") == made
    assert hash_rows({"x": x.astype(np.float32)}, "key") != made
    parts = {hash_rows({"x": part}, "key") for part in (x[:, [1, 0, 2]], x[1:], x[[0, *range(500)]])}
    assert len(parts | {made}) == 4


def test_hashes_of_shards_that_lie_one_after_the_other_are_those_of_each_alone():
    rng = np.random.default_rng(3)
    sizes = [1, 2000, 3, 70_000, 1, 500]
    x, ends = rng.standard_normal((sum(sizes), 3)), np.cumsum(sizes)
    rows = {"x": np.where(rng.random(x.shape) < 0.5, x.astype(np.float32), x), "y": rng.integers(2, size=len(x))}
    each = [{name: column[b - n : b] for name, column in rows.items()} for b, n in zip(ends, sizes, strict=True)]
    assert hash_each(rows, sizes, "key") == [hash_rows(own, "key") for own in each]


def test_what_a_label_adds_to_the_sum_over_rows_differs_from_row_to_row():
    """Were the sum's change for a label of 1 the same in two rows, their labels could be swapped unseen."""
    x = np.arange(2000.0, dtype=np.float32)
    changes = (_mixed([x, np.ones(len(x))]) - _mixed([x, np.zeros(len(x))])).T
    # 2000 rows have 2·10⁶ pairs, and 48 bits 2.8·10¹⁴ values: of chance alone, one pair in 10⁸ such tests.
    for part in (changes & np.uint64(2**48 - 1), changes >> np.uint64(16)):
        assert [len(np.unique(lane)) for lane in part.T] == [2000, 2000]


OTHER_MODELS = {
    "prior": (model_with(scale=1.001), "whose prior differs"),
    "likelihood": (model_with(temperature=1.01), "whose likelihood differs"),
}


@pytest.mark.parametrize("name", OTHER_MODELS)
def test_another_model_is_refused(name):
    other, sentence = OTHER_MODELS[name]
    both = [fitted(ONE), fitted(other, 2, "second")]
    refused(lambda: epvi.combine(both), rf"shard 2 of 2 and shard 1 of 2 come from different models .*{sentence}")


@pytest.mark.parametrize("like", ["wide", pytest.param("second", marks=pytest.mark.slow)])
def test_the_same_model_in_other_words_and_rows_of_another_precision_belong_together(like):
    assert epvi.combine([fitted(ONE), fitted(other_words, 2, like)]).num_rows == 80


def test_a_fixed_argument_that_differs_is_named():
    made = [fitted(epvi.Model(with_fixed, scale=scale), m) for m, scale in ((1, 1.0), (2, 1))]
    other = [fitted(epvi.Model(with_fixed, **fixed), 2, "second") for fixed in ({"scale": 2.0}, {"levels": ("b", "a")})]
    assert made[0].made_of.fixed == made[1].made_of.fixed
    refused(lambda: epvi.combine([made[0], other[0]]), "different values of the fixed argument 'scale'")
    refused(lambda: epvi.combine([made[0], other[1]]), "different values of the fixed argument 'levels'")


SAME_FIXED = {
    "number": (2, np.float32(2.0)),
    "zero": (0.0, -0.0),
    "array": (np.arange(3), jnp.arange(3.0)),
    "list": ([1, 2], (1.0, 2.0)),
    "texts": (["a", "b"], ("a", "b")),
    "table": ({"a": 1, "b": [2, "c"]}, {"b": (2.0, "c"), "a": 1.0}),
    "large": (10**400, 10**400),
}
OTHER_FIXED = {
    "number": (2, 3),
    "text": ("a", "b"),
    "nothing": (None, 0),
    "shape": (np.zeros(2), np.zeros((2, 1))),
    "texts": (["a", "b"], ["b", "a"]),
    "table": ({"a": 1}, {"a": 2}),
    "function": (np.sin, jnp.tanh),
}


@pytest.mark.parametrize("name", SAME_FIXED)
def test_equal_fixed_arguments_have_equal_hashes(name):
    a, b = SAME_FIXED[name]
    assert hash_fixed({"a": a}) == hash_fixed({"a": b})


@pytest.mark.parametrize("name", OTHER_FIXED)
def test_other_fixed_arguments_have_other_hashes(name):
    a, b = OTHER_FIXED[name]
    assert hash_fixed({"a": a}) != hash_fixed({"a": b})


def values(model, rows):
    made = model if isinstance(model, epvi.Model) else epvi.Model(model)
    return model_values(programs_of(made, rows), rows)


def correlated(x, y):
    w = numpyro.sample("w", dist.MultivariateNormal(jnp.zeros(2), jnp.array([[2.0, 0.9], [0.9, 0.5]])))
    numpyro.sample("y", dist.MultivariateNormal(jnp.outer(x @ w, jnp.ones(2)), 2 * jnp.eye(2)), obs=y)


def two_kinds(y):
    centre = numpyro.sample("centre", dist.Normal(jnp.zeros(2), 3.0).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        kind = numpyro.sample("kind", dist.Bernoulli(0.3), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(centre[kind], 1.0), obs=y)


def test_models_with_factorisations_and_with_discrete_sites_have_fingerprints():
    for model, rows in ((correlated, {"x": X, "y": X}), (two_kinds, {"y": X[:, 0]})):
        prior, likelihood = values(model, rows)
        assert np.all(np.isfinite([*prior, *likelihood]))
        assert (len(prior), len(likelihood)) == (6, 24)
        assert values(model, rows) == (prior, likelihood)


def test_the_prior_part_is_the_log_prior_and_its_slope():
    prior, _ = values(ONE, FIRST)
    theta = 0.7 * np.sin(2 * np.pi * 0.6180339887498949 * np.arange(1, 7)).reshape(3, 2)
    square = np.sum(theta**2, axis=1)
    np.testing.assert_allclose(prior, [*(-0.5 * square - np.log(2 * np.pi)), *-square], rtol=1e-11)


def test_labels_as_truth_values_and_as_numbers_are_one_model():
    truth = epvi.fit_shard(ONE, SECOND | {"y": SECOND["y"] > 0}, "2/2", inference=QUICK)
    assert epvi.combine([fitted(ONE), truth]).num_rows == 80
    hidden = epvi.fit_shard(model_with(temperature=1.01), SECOND | {"y": SECOND["y"] > 0}, "2/2", inference=QUICK)
    refused(lambda: epvi.combine([fitted(ONE), hidden]), "whose likelihood differs")


def test_what_is_unknown_agrees_with_anything():
    """A likelihood that is not a number at made-up rows, or a fit that does not tell what it was made of."""
    one, two = fitted(ONE), fitted(ONE, 2, "second")
    some = (np.nan, *two.made_of.row_values[1:])
    for made_of in (dataclasses.replace(two.made_of, row_values=some), Provenance(rows="x")):
        made_of = dataclasses.replace(made_of, fixed=one.made_of.fixed)
        assert epvi.combine([one, dataclasses.replace(two, made_of=made_of)]).num_rows == 80


PRIORS = {
    "flat": ((0.0, 0.0, 0.0, 0.0), True),
    "another constant": ((-3.0, -3.0, 0.0, -0.0), True),
    "slope": ((-3.0, -3.0, 0.0, 1e-20), False),
    "steps": ((-3.0, -2.0, 0.0, 0.0), False),
    "unknown": ((np.nan, np.nan, 0.0, 0.0), False),
    "nothing": ((), False),
}


@pytest.mark.parametrize("name", PRIORS)
def test_a_prior_is_flat_when_its_values_are_equal_and_its_slopes_zero(name):
    given, is_flat = PRIORS[name]
    assert Provenance(prior_values=given).flat_prior is is_flat


def test_only_the_very_objects_that_were_compared_are_known():
    known = Known()
    for i in range(1000):
        # Each of these dies unless it is kept, and the next one could have its identity.
        pair = ([i], [i])
        assert not known.has(pair)
        known.add(pair)
        assert known.has(pair)
