"""Dask as the executor, and epvi inside a Dask worker; workers that are killed are Dask's to replace."""

import os

import numpy as np
import pytest
from deadly_workers import fitted, make_deadly, mean

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def client():
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster,
        distributed.Client(cluster) as made,
    ):
        yield made


@pytest.fixture(scope="module")
def undisturbed():
    return fitted()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_dask_worker_killed_while_it_fits_and_again_while_it_scores_changes_nothing(
    when, client, undisturbed, tmp_path, monkeypatch
):
    make_deadly(monkeypatch, tmp_path, when)
    posterior = fitted(client.get_executor())
    assert sorted(os.listdir(tmp_path)) == ["answer_batch-0", "run_shard-0"]
    np.testing.assert_allclose(posterior.mixture.mean(), undisturbed.mixture.mean(), rtol=1e-10)
    np.testing.assert_allclose(posterior.mixture.covariance(), undisturbed.mixture.covariance(), rtol=1e-9)


def test_a_fit_inside_a_dask_worker_works(client, undisturbed):
    np.testing.assert_allclose(client.submit(mean, pure=False).result(), mean(), rtol=1e-10)
