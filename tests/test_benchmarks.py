"""The yardstick measures the right thing: the plain formulas give what epvi gives, and the benchmark runs."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import plain
import products
import pytest

from epvi import Exact, multiply

ROOT = Path(__file__).parents[1]


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


def test_the_files_benchmark_prints_its_tables_and_no_hostile_epvi_file_is_taken():
    command = [sys.executable, str(ROOT / "benchmarks" / "files.py"), "--count", "2"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for way in ("safetensors", "npz", "JSON", "save and load"):
        assert len([line for line in printed.splitlines() if line[28:].startswith(way)]) == 2
    said = [line for line in printed.splitlines() if line[20:].startswith(".epvi ")]
    assert len(said) == 7
    assert all("refused: " in line for line in said)
    assert "the file's code ran" in printed  # the yardstick: what a pickle does
