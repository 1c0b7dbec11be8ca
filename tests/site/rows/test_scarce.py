"""Rows with scarce values, and the subsamples that have enough of them."""

import numpy as np
import pytest

from epvi.site.rows.scarce import Scarce, find_scarce

N = 4000


def _columns(seed: int = 0) -> dict[str, np.ndarray]:
    """A common and a rare category, a rare one with another common value, a numeric column, and a rare label."""
    rng = np.random.default_rng(seed)
    x = np.stack([rng.random(N) < 0.3, rng.random(N) < 0.01, 5 - 2 * (rng.random(N) < 0.002), rng.normal(size=N)], 1)
    return {"x": x.astype(np.float32), "y": rng.random(N) < 0.03}


def test_finds_the_rows_that_differ_from_the_common_value() -> None:
    columns = _columns()
    (found,) = find_scarce(columns, np.array([0, N])) or []
    x, y = columns["x"], columns["y"]
    others = np.stack([x[:, 1] == 1, x[:, 2] == 3, y])
    assert (found.num_rows, found.num_columns) == (N, 3)
    np.testing.assert_array_equal(found.places, np.flatnonzero(np.any(others, axis=0)))
    leverage = np.sum(others / np.sum(others, axis=1, keepdims=True), axis=0)
    np.testing.assert_allclose(found.leverage, leverage[found.places])


def test_counts_rows_in_each_shard() -> None:
    columns, bounds = _columns(), np.array([0, 700, 700, N])
    together = find_scarce(columns, bounds)
    assert together is not None
    assert [one.num_rows for one in together] == [700, 0, 3300]
    for one in together:
        # Leverages of the rows of a column sum to one.
        assert np.sum(one.leverage) == pytest.approx(one.num_columns)
        assert np.all(one.places < one.num_rows)


def test_a_shard_without_scarce_values_beside_one_that_has_some_is_sampled_uniformly() -> None:
    y = np.zeros(N)
    y[:40] = 1.0
    with_some, without = find_scarce({"y": y}, np.array([0, 2000, N])) or []
    chosen, rng = np.array([7, 3, 1500]), np.random.default_rng(0)
    rows, each = without.besides(chosen, rng)
    assert (len(with_some.places), len(without.places)) == (40, 0)
    np.testing.assert_array_equal(rows, [3, 7, 1500])
    np.testing.assert_array_equal(each, [2000 / 3] * 3)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_finds_none_where_no_column_has_scarce_values(share: float) -> None:
    rng = np.random.default_rng(1)
    columns = {"x": rng.normal(size=(N, 2)), "g": rng.integers(50, size=N), "b": rng.random(N) < share}
    assert find_scarce(columns, np.array([0, N])) is None


def test_estimates_from_subsamples_are_unbiased() -> None:
    columns = _columns()
    (found,) = find_scarce(columns, np.array([0, N])) or []
    totals, rng = [], np.random.default_rng(2)
    numbers = np.column_stack([columns["x"], columns["y"], np.ones(N)]).astype(float)
    for _ in range(400):
        rows, represented = found.besides(rng.choice(N, 200, replace=False), rng)
        assert np.all(np.diff(rows) > 0)
        totals.append(represented @ numbers[rows])
    errors = np.std(totals, axis=0) / np.sqrt(len(totals))
    assert np.all(np.abs(np.mean(totals, axis=0) - numbers.sum(axis=0)) < 4 * errors)


def test_the_scarcest_rows_are_in_every_subsample() -> None:
    few = np.array([3, 1000, 3999])
    found = Scarce(N, few, np.full(3, 1 / 3), 1)
    rows, represented = found.besides(np.arange(0, N, 20), np.random.default_rng(0))
    assert np.all(np.isin(few, rows))
    np.testing.assert_array_equal(represented[np.isin(rows, few)], 1)


def test_influence_is_relative_to_the_average_row() -> None:
    influence = Scarce(N, np.array([5]), np.array([1.0]), 1).influence(10)
    assert np.mean(influence) == pytest.approx(1.0)
    assert influence[5] == pytest.approx(N / 10 * (9 / N + 1))
