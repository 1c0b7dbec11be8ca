"""A posterior leaves for ArviZ, Arrow, pandas and Polars: the same draws, named, with where they came from."""

import contextlib
import dataclasses
import importlib
import json
import subprocess
import sys
import warnings
from fractions import Fraction

import arviz_base
import arviz_stats
import jax.numpy as jnp
import matplotlib
import numpy as np
import numpyro
import numpyro.distributions as dist
import polars
import pyarrow.parquet
import pytest
import xarray
from scipy.special import logsumexp
from sentences import refused

import epvi
from epvi.hub.trust.chains import Chains
from epvi.models import multinomial, simulate_multinomial
from epvi.site.derivatives.passes import programs_of

RNG = np.random.default_rng(0)
X = RNG.normal(size=(100, 2))
ROWS = {"x": X, "y": X @ np.array([1.0, -2.0]) + 0.5 * RNG.normal(size=100)}
REAL = dist.constraints.real


def linear(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    numpyro.deterministic("twice", 2 * w)
    numpyro.deterministic("mean", x @ w)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, sigma), obs=y)


def posterior_of(space, mean, sd, num_shards=2):
    """A posterior made by hand: a Gaussian over unconstrained θ, from equal shards with 10 rows each."""
    variances = num_shards * np.square(np.broadcast_to(np.asarray(sd, float), (1, space.dim)))
    mixture = epvi.GaussianMixture.from_covariances(np.broadcast_to(mean, (1, space.dim)), variances)
    fit = epvi.ShardFit(
        mixture=mixture,
        space=space,
        shard=1,
        num_shards=num_shards,
        label="",
        prior=Fraction(1, num_shards),
        num_rows=10,
        status=epvi.multiply([mixture]).status,
        history=(),
        elbo=epvi.Estimate(np.asarray(0.0), np.asarray(0.0)),
        gap=0.0,
        passes=0,
        seconds=0.0,
    )
    numbers = range(1, num_shards + 1)
    return epvi.combine([dataclasses.replace(fit, shard=m, label=f"{m} of {num_shards}") for m in numbers])


def posterior_for(model, rows, mean=0.0, sd=0.3):
    return posterior_of(programs_of(model, rows).target.space, mean, sd)


MODEL = epvi.Model(linear)


@pytest.fixture(scope="module")
def posterior():
    """About the posterior of the rows under a flat prior."""
    w, (squares,), _, _ = np.linalg.lstsq(X, ROWS["y"], rcond=None)
    sigma = np.sqrt(squares / 98)
    sd = sigma * np.sqrt(np.diag(np.linalg.inv(X.T @ X)))
    return posterior_for(MODEL, ROWS, [*w, np.log(sigma)], [*sd, 1 / np.sqrt(196)])


@pytest.fixture(scope="module")
def tree(posterior):
    return posterior.to_arviz(model=MODEL, rows=ROWS, seed=3)


def test_the_frame_and_the_tree_have_the_draws_of_sample(posterior, tree):
    draws = posterior.sample(1000, seed=3)
    frame = posterior.draws_frame(seed=3)
    assert frame.column_names == ["w[0]", "w[1]", "sigma"] == list(posterior.summary().names)
    assert {str(column.type) for column in frame.columns} == {"double"}
    for name, values in (("w[0]", draws["w"][:, 0]), ("w[1]", draws["w"][:, 1]), ("sigma", draws["sigma"])):
        np.testing.assert_array_equal(frame[name].to_numpy(), values)
        np.testing.assert_array_equal(frame.to_pandas()[name], values)
        np.testing.assert_array_equal(polars.from_arrow(frame)[name].to_numpy(), values)
    for name, values in draws.items():
        assert tree["posterior"][name].dims[:2] == ("chain", "draw")
        assert tree["posterior"][name].shape == (4, 250, *values.shape[1:])
        np.testing.assert_array_equal(tree["posterior"][name].values.reshape(values.shape), values)


def test_elements_of_matrices_have_the_names_of_the_summary():
    space = epvi.Space((epvi.Parameter("a/m", (2, 2), REAL), epvi.Parameter("b", (), REAL)))
    posterior = posterior_of(space, np.arange(5.0), 1e-6)
    frame = posterior.draws_frame(8)
    assert tuple(frame.column_names) == posterior.summary().names
    np.testing.assert_allclose([column[0].as_py() for column in frame.columns], np.arange(5.0), atol=1e-4)
    made = posterior.to_arviz(16)["posterior"]
    assert made["a.m"].dims == ("chain", "draw", "a.m_dim_0", "a.m_dim_1")
    np.testing.assert_allclose(made["a.m"].values[0, 0], [[0.0, 1.0], [2.0, 3.0]], atol=1e-4)


def test_the_frame_says_where_it_came_from_also_in_a_file(posterior, tmp_path):
    pyarrow.parquet.write_table(posterior.draws_frame(10), tmp_path / "draws.parquet")
    about = json.loads(pyarrow.parquet.read_table(tmp_path / "draws.parquet").schema.metadata[b"epvi"])
    assert about["inference_library"] == "epvi"
    assert (about["num_rows"], about["num_shards"]) == (20, 2)
    assert json.loads(about["shards"]) == ["1 of 2", "2 of 2"]
    assert (about["status"], about["product"]) == (posterior.status.text, "by size")


def test_a_sampled_product_is_said_to_be(posterior):
    rounds = epvi.combine(posterior.fits, epvi.Subset())
    assert rounds.to_arviz(100).attrs["product"] == "Subset"


def test_the_tree_has_the_groups_of_arviz(tree):
    assert set(tree.children) == {
        "posterior",
        "posterior_predictive",
        "log_likelihood",
        "observed_data",
        "constant_data",
    }
    assert set(tree["posterior"].data_vars) == {"w", "sigma", "twice"}
    np.testing.assert_array_equal(tree["posterior"]["twice"].values, 2 * tree["posterior"]["w"].values)
    for group, name, dims in (
        ("posterior_predictive", "y", ("chain", "draw", "row")),
        ("log_likelihood", "y", ("chain", "draw", "row")),
        ("observed_data", "y", ("row",)),
        ("constant_data", "x", ("row", "x_dim_0")),
    ):
        assert {str(n): v.dims for n, v in tree[group].data_vars.items()} == {name: dims}
    np.testing.assert_array_equal(tree["observed_data"]["y"], ROWS["y"])
    np.testing.assert_array_equal(tree["constant_data"]["x"], X)


def test_a_posterior_alone_gives_its_group_alone(posterior):
    assert set(posterior.to_arviz(64).children) == {"posterior"}


def test_chains_of_nuts_stay_chains_in_their_order(posterior, monkeypatch):
    walk = np.cumsum(np.random.default_rng(1).normal(size=(3, 400, posterior.space.dim)), axis=1) / 20
    chains = Chains(walk, 0, 100, 1.0)
    monkeypatch.setattr(epvi.Posterior, "chains", property(lambda _: chains))
    made = posterior.to_arviz(600, seed=3)["posterior"]
    at = posterior.space.slices["w"]
    np.testing.assert_array_equal(made["w"].values, walk[:, ::2, at])
    # The chains have not mixed, and ArviZ sees it.
    assert float(arviz_stats.rhat(made, var_names=["w"])["w"].max()) > 1.1
    refused(lambda: posterior.to_arviz(600, num_chains=4), "NUTS ran 3 chains: leave num_chains out")
    refused(lambda: posterior.to_arviz(1500), "num_samples is 1,500, but NUTS drew 1,200")


def test_the_log_likelihood_is_that_of_log_predictive(posterior, tree):
    logs = tree["log_likelihood"]["y"].values.reshape(1000, 100)
    mean = np.mean(logsumexp(logs, axis=0) - np.log(1000))
    assert abs(mean - epvi.log_predictive(MODEL, posterior, ROWS, num_samples=1000, seed=3)) < 1e-10
    draws = posterior.sample(1000, seed=3)
    sigma = draws["sigma"][:, None]
    naive = -0.5 * ((ROWS["y"] - draws["w"] @ X.T) / sigma) ** 2 - np.log(sigma * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(logs, naive, rtol=1e-9, atol=1e-9)


def test_rows_drawn_anew_have_the_models_moments(tree):
    drawn = tree["posterior_predictive"]["y"].values.reshape(1000, 100)
    w, sigma = tree["posterior"]["w"].values.reshape(1000, 2), tree["posterior"]["sigma"].values.reshape(1000)
    z = (drawn - w @ X.T) / sigma[:, None]
    # 100,000 standard normals, if the rows were drawn at the draws that stand beside them.
    assert abs(z.mean()) < 4 / np.sqrt(z.size)
    assert abs(z.var() - 1) < 4 * np.sqrt(2 / z.size)


def test_arviz_summarises_it(posterior, tree):
    found = arviz_stats.summary(tree, var_names=["w", "sigma"], round_to="none")
    ours = posterior.summary()
    error = ours.sd / np.sqrt(1000)
    assert list(found.index) == ["w[0]", "w[1]", "sigma"]
    assert np.all(np.abs(found["mean"].to_numpy(float) - ours.mean) < 4 * error)
    # Independent draws: R-hat of eight half chains of 125 stays within its 1.01.
    assert np.all(found["r_hat"].to_numpy(float) < 1.02)
    assert np.all(found["ess_bulk"].to_numpy(float) > 600)


def test_arviz_leaves_rows_out_with_it(tree):
    logs = tree["log_likelihood"]["y"].values.reshape(1000, 100)
    loo = arviz_stats.loo(tree)
    # Plain importance sampling has 1 / mean(1 / p) for a row left out; ArviZ smooths the largest weights.
    plain = np.sum(np.log(1000) - logsumexp(-logs, axis=0))
    weights = np.exp(-logs - logsumexp(-logs, axis=0))
    error = np.sqrt(np.sum(weights**2))
    assert loo.n_data_points == 100
    assert abs(loo.elpd - plain) < 4 * error


@pytest.fixture(scope="module")
def arviz_plots():
    # Before 1.2 it reaches for matplotlib.style.core, which matplotlib 3.11 deprecates and does not load by itself.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", matplotlib.MatplotlibDeprecationWarning)
        with contextlib.suppress(ImportError):
            importlib.import_module("matplotlib.style.core")
        return importlib.import_module("arviz_plots")


def test_arviz_draws_it(tree, arviz_plots):
    made = arviz_plots.plot_forest(tree, var_names=["w", "sigma"], backend="none")
    assert isinstance(made, arviz_plots.PlotCollection)
    assert isinstance(arviz_plots.plot_ppc_dist(tree, backend="none"), arviz_plots.PlotCollection)


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part in the Zarr format 3:UserWarning")
@pytest.mark.parametrize("kind", ["netcdf", "zarr"])
def test_it_survives_a_file(tree, kind, tmp_path):
    path = tmp_path / f"posterior.{kind}"
    if kind == "netcdf":
        tree.to_netcdf(path, engine="h5netcdf")
        again = xarray.open_datatree(path, engine="h5netcdf")
    else:
        tree.to_zarr(path)
        again = xarray.open_datatree(path, engine="zarr")
    with again:
        assert set(again.children) == set(tree.children)
        for group in tree.children:
            xarray.testing.assert_equal(again[group].dataset, tree[group].dataset)
        assert dict(again.attrs) == tree.attrs
        about = again["posterior"].attrs
        assert about["inference_library"] == "epvi"
        assert (about["num_rows"], about["num_shards"], about["status_ok"]) == (20, 2, 1)
        assert json.loads(about["shards"]) == ["1 of 2", "2 of 2"]
        assert about["status"].startswith("exact")
        assert "created_at" in about


def test_a_model_of_densities_has_log_likelihoods_only():
    model = epvi.Model.from_log_density(
        lambda v: -(v["a"] ** 2), lambda v, rows: rows["x"] * v["a"], {"a": ()}, supports={}
    )
    rows = {"x": np.arange(3.0)}
    made = posterior_for(model, rows).to_arviz(16, model=model, rows=rows)
    assert set(made.children) == {"posterior", "log_likelihood", "constant_data"}
    expected = made["posterior"]["a"].values[..., None] * rows["x"]
    np.testing.assert_allclose(made["log_likelihood"]["rows"].values, expected, rtol=1e-12)
    assert made["log_likelihood"]["rows"].dims == ("chain", "draw", "row")


def test_observed_values_that_the_model_computes_are_those_it_sees_and_are_drawn_anew():
    """The labels reach `obs` as integers made from the column."""
    rows, _ = simulate_multinomial(12, 2, num_classes=3, seed=0)
    rows["y"] = rows["y"].astype(float)
    model = epvi.Model(multinomial, num_classes=3)
    made = posterior_for(model, rows).to_arviz(400, model=model, rows=rows)
    assert made["observed_data"]["y"].dtype.kind == "i"
    np.testing.assert_array_equal(made["observed_data"]["y"], rows["y"])
    assert set(made["constant_data"].data_vars) == {"x"}
    drawn = made["posterior_predictive"]["y"].values.reshape(400, 12)
    assert set(np.unique(drawn)) == {0, 1, 2}
    assert np.all(drawn.std(axis=0) > 0)


def test_rows_come_first_and_several_sites_have_one_log_likelihood():
    """A site whose rows are its second axis and whose value is broadcast, and a site named as a dimension would be."""

    def two(y, row):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            with numpyro.plate("times", 3):
                numpyro.sample("thrice", dist.Normal(a, 1.0), obs=y)
            numpyro.sample("row", dist.Normal(a, jnp.ones(2)).to_event(1), obs=row)

    rows = {"y": np.arange(5.0), "row": np.zeros((5, 2))}
    model = epvi.Model(two)
    made = posterior_for(model, rows).to_arviz(16, model=model, rows=rows)
    assert made["posterior_predictive"]["thrice"].shape == (4, 4, 5, 3)
    assert made["posterior_predictive"]["row"].dims == ("chain", "draw", "row_", "row_dim_0")
    np.testing.assert_array_equal(made["observed_data"]["thrice"], np.repeat(np.arange(5.0)[:, None], 3, axis=1))
    assert list(made["log_likelihood"].data_vars) == ["rows"]
    assert made["log_likelihood"]["rows"].dims == ("chain", "draw", "row_")
    assert "constant_data" not in made.children


def test_predictions_for_rows_that_were_seen_are_drawn_although_the_model_needs_the_observed_column(posterior):
    def needs(x, y):
        linear(x, y)

    seen = epvi.predict(needs, posterior, ROWS, num_samples=50, seed=1)["y"]
    np.testing.assert_array_equal(seen, epvi.predict(linear, posterior, {"x": X}, num_samples=50, seed=1)["y"])


def test_too_many_log_likelihoods_are_refused(posterior, monkeypatch):
    monkeypatch.setattr(sys.modules["epvi.site.tasks.predictive"], "_MAX_BYTES", 16 * 100 * 100)
    assert posterior.to_arviz(100, model=MODEL, rows=ROWS)["log_likelihood"].sizes["draw"] == 25
    refused(
        lambda: posterior.to_arviz(200, model=MODEL, rows=ROWS),
        r"200 draws of 100 rows take .* num_samples of at most 100, or at most 50 of the rows",
    )


def test_bad_questions_are_answered_in_a_sentence(posterior, untyped):
    refused(lambda: posterior.to_arviz(model=linear, rows=ROWS), r"pass epvi\.Model\(function\)")
    refused(lambda: posterior.to_arviz(model=MODEL), "has no rows: pass model and rows together")
    refused(lambda: posterior.to_arviz(rows=ROWS), "has no model: pass model and rows together")
    refused(lambda: posterior.to_arviz(10), "pass a multiple of num_chains")
    refused(lambda: posterior.to_arviz(8), "at least as many draws in a chain")
    refused(lambda: posterior.to_arviz(8, num_chains=0), "num_chains is 0")
    refused(lambda: posterior.draws_frame(0), "num_samples is 0")
    rows = {"x": np.ones((3, 1)), "y": np.zeros(3)}
    refused(lambda: posterior.to_arviz(model=epvi.Model(multinomial, num_classes=2), rows=rows), "was fitted with")
    names = epvi.Space((epvi.Parameter("draw", (), REAL),))
    refused(lambda: posterior_of(names, 0.0, 1.0).to_arviz(), "has 'draw', which ArviZ needs")
    names = epvi.Space((epvi.Parameter("a/b", (), REAL), epvi.Parameter("a.b", (), REAL)))
    refused(lambda: posterior_of(names, 0.0, 1.0).to_arviz(), "by a slash and a dot only")


def test_without_arviz_a_sentence_says_how_to_get_it(posterior, monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz_base", None)
    refused(lambda: posterior.to_arviz(), r"pip install 'epvi\[arviz\]'")


def test_importing_epvi_does_not_import_where_posteriors_go():
    code = "import sys, epvi; sys.exit(any(m in sys.modules for m in ('pyarrow', 'arviz_base', 'xarray')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_arviz_itself_takes_the_tree_for_its_own(tree):
    assert arviz_base.extract(tree, var_names="sigma").sizes["sample"] == 1000
