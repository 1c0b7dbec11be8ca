"""The yardstick measures the right thing: the plain formulas give what epvi gives, and the benchmark runs."""

import subprocess
import sys
from pathlib import Path

import low_rank
import numpy as np
import plain
import products
import pytest
import susy

from epvi import Exact, multiply

ROOT = Path(__file__).parents[2]


def test_plain_formulas_agree_with_exact():
    shards = products.make_shards(4, d=3)
    log_w, means, variances = plain.exact_vectorised(shards)
    product = multiply(products.mixtures(shards), Exact())
    np.testing.assert_allclose(product.mixture.log_weights, log_w - np.logaddexp.reduce(log_w), atol=1e-9)
    np.testing.assert_allclose(product.mixture.means, means, atol=1e-10)
    np.testing.assert_allclose(product.mixture.roots[:, 0] ** -2, variances, rtol=1e-10)
    one_by_one = plain.exact(shards, limit=20)
    np.testing.assert_allclose([w for w, _, _ in one_by_one], log_w[:20], rtol=1e-11)
    np.testing.assert_allclose([mean for _, mean, _ in one_by_one], means[:20], rtol=1e-9)


def test_plain_chain_samples_the_product():
    shards = products.make_shards(3, d=1)
    log_w, means, _ = plain.exact_vectorised(shards)
    expected = np.exp(log_w - np.logaddexp.reduce(log_w)) @ means[:, 0]
    runs = np.array([plain.chain(shards, 2000, 200, seed)[0].mean() for seed in range(10)])
    assert abs(runs.mean() - expected) < 6.6 * runs.std(ddof=1) / np.sqrt(10)  # t_9 at 4 sigma


@pytest.mark.slow
def test_the_benchmark_prints_its_table():
    command = [sys.executable, str(ROOT / "benchmarks" / "products.py"), "--quick"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    for way in ("Chain", "Exact", "Subset", "Anchored"):
        assert way in done.stdout


def test_precisions_of_low_rank_are_exact_where_the_rank_is_enough():
    rng = np.random.default_rng(0)
    parts = rng.normal(size=(12, 2))
    exact = low_rank.ratios(parts @ parts.T + np.diag(rng.uniform(1, 2, 12)), 2, 500)
    np.testing.assert_allclose(exact, 1, atol=0.01)
    x = low_rank.columns(400, 40, rng)["AR(0.9)"]
    assert np.max(low_rank.ratios(low_rank.curvature(x, rng), 2, 10)) < 0.9


def test_rows_like_susys_have_its_means_scales_and_correlations():
    n = 200_000
    x = susy.susy_like(n, 0, standardised=False)["x"].astype(np.float64)
    assert x.shape == (n, len(susy.COLUMNS))
    # Four standard errors of each; that of a correlation r is (1 - r²)/√n.
    np.testing.assert_array_less(np.abs(x.mean(axis=0) - susy.MEANS) / susy.SCALES, 4 / np.sqrt(n))
    np.testing.assert_array_less(np.abs(x.std(axis=0) / susy.SCALES - 1), 4 / np.sqrt(2 * n))
    below = np.tril_indices(len(susy.COLUMNS), -1)
    expected, found = susy.correlations()[below], np.corrcoef(x.T)[below]
    np.testing.assert_array_less(np.abs(found - expected), 4.5 * (1 - expected**2) / np.sqrt(n))
    assert np.min(np.linalg.eigvalsh(susy.correlations())) > 0.001


def test_rows_like_susys_have_the_labels_of_their_logistic_model():
    n = 200_000
    rows = susy.susy_like(n, 1)
    x, y = rows["x"].astype(np.float64), rows["y"]
    p = 1 / (1 + np.exp(-(x @ susy.COEFFICIENTS)))
    assert set(np.unique(y)) == {0, 1}
    assert abs(y.mean() - 0.5) < 4 * 0.5 / np.sqrt(n)
    score, error = (y - p) @ x, np.sqrt((p * (1 - p)) @ x**2)
    np.testing.assert_array_less(np.abs(score) / error, 4.5)


def test_rows_like_susys_come_again_by_their_seed_and_are_the_first_of_more():
    few, again, more, other = (susy.susy_like(n, seed) for n, seed in ((1000, 3), (1000, 3), (140_000, 3), (1000, 4)))
    for name in ("x", "y"):
        np.testing.assert_array_equal(few[name], again[name])
        np.testing.assert_array_equal(few[name], more[name][:1000])
        assert np.any(few[name] != other[name])
    assert not np.array_equal(more["x"][:1000], more["x"][2**17 : 2**17 + 1000])
    units = susy.susy_like(1000, 3, standardised=False)["x"]
    np.testing.assert_allclose((units - susy.MEANS) / susy.SCALES, few["x"], atol=1e-4)


@pytest.mark.slow
def test_the_files_benchmark_prints_its_tables_and_no_hostile_epvi_file_is_taken():
    command = [sys.executable, str(ROOT / "benchmarks" / "files.py"), "--count", "2"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for way in ("safetensors", "npz", "JSON", "save and load"):
        assert len([line for line in printed.splitlines() if line[28:].startswith(way)]) == 2
    said = [line for line in printed.splitlines() if line[20:].startswith(".epvi ")]
    assert len(said) == 7
    assert all("refused: " in line for line in said)
    assert "the file's code ran" in printed  # the yardstick: what a pickle does
