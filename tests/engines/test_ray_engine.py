"""Ray's own: datasets and their blocks, and what is said without it."""

import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from engine_faults import partner
from some_fragments import described, fitted, line, same, table, written

import epvi

# Ray Data warns of settings of its own.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return written(tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="module")
def expected(rows):
    return fitted(rows, epvi.engines.Local(1))


@pytest.fixture(scope="module")
def cluster():
    ray = partner("ray")
    found = {"PYTHONPATH": str(Path(__file__).parents[1])}
    with warnings.catch_warnings():
        # Of settings that its next versions change.
        warnings.simplefilter("ignore")
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": found})
    yield
    ray.shutdown()


def dataset_of(sizes=(30, 40, 20, 30), **changed):
    """A Ray dataset with these numbers of rows in its blocks; the changed columns are those of the third."""
    import ray

    return ray.data.from_arrow([table(n, i, **(changed if i == 2 else {})) for i, n in enumerate(sizes)])


@pytest.mark.engines
def test_blocks_of_a_dataset_are_fragments_and_its_engine_is_known(cluster, expected):
    assert same(fitted(described(dataset_of())), expected)


@pytest.mark.engines
def test_errors_name_the_block(cluster):
    with pytest.raises(epvi.EpviError, match="partition 3 of 4: column 'b' of the data has 1 missing value in 20 rows"):
        fitted(described(dataset_of(b=[np.nan] + [1.0] * 19)))
    with pytest.raises(epvi.EpviError, match="the Ray dataset has no column 'lable': its columns are a, b, c, label"):
        fitted(epvi.Rows(dataset_of(), x=["a", "b"], y="lable"))
    with pytest.raises(epvi.EpviError, match="rows are a dict, which Ray's workers cannot read"):
        epvi.fit(line, {"x": np.zeros((3, 2)), "y": np.zeros(3)}, 1, engine=epvi.engines.Ray())


def test_without_ray_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(epvi.EpviError, match=r"epvi.engines.Ray needs Ray: pip install 'epvi\[ray\]'."):
        epvi.engines.Ray()
