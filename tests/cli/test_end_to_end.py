"""As people do it: sites with their own rows, each in a process of its own, and a centre that has only files."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from commands import call_json, ended, started

import epvi
from epvi.study.references import model_named

MODEL = """
import numpyro, numpyro.distributions as dist

def regression(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([x.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, sigma), obs=y)
"""
SITES = {"east": 60, "west": 50, "north": 40, "south": 30}


def simulate(folder):
    """A folder per site with its table and the model file; gives all rows in one place."""
    rng = np.random.default_rng(0)
    tables = []
    for name, n in SITES.items():
        site = folder / name
        site.mkdir()
        (site / "model.py").write_text(MODEL)
        x = rng.normal(size=(n, 2))
        table = np.column_stack([x, x @ [1.0, -0.5] + 0.8 * rng.normal(size=n)])
        np.savetxt(site / "rows.csv", table, "%.17g", ",", header="age,dose,effect", comments="")
        tables.append(table)
    all_rows = np.concatenate(tables)
    names = np.repeat(list(SITES), list(SITES.values()))
    return {"x": all_rows[:, :2], "y": all_rows[:, 2], "site": names}


@pytest.mark.slow
def test_sites_and_a_centre_find_what_one_process_finds(tmp_path):
    rows = simulate(tmp_path)
    columns = ("--rows", "rows.csv", "--x", "age,dose", "--y", "effect", "--components", "1")
    working = [
        started(
            *("shard", "model.py:regression", *columns, "--shard", f"{m}/{len(SITES)}", "-o", "mine.epvi"),
            folder=tmp_path / name,
        )
        for m, name in enumerate(SITES, start=1)
    ]
    model = model_named("model.py:regression", beside=tmp_path / "east")
    with ThreadPoolExecutor(1) as executor:
        expected = epvi.fit(model, rows, by="site", inference=epvi.NVI(1), certify=False, executor=executor)
    for m, process in enumerate(working, start=1):
        out, err = ended(process)
        assert out.startswith(f"Shard {m} of {len(SITES)}: ")
        assert err == ""
    centre = tmp_path / "centre"
    centre.mkdir()
    for name in SITES:
        shutil.move(tmp_path / name / "mine.epvi", centre / f"{name}.epvi")
        shutil.rmtree(tmp_path / name)
    files = [f"{name}.epvi" for name in SITES]
    out, _ = ended(started("combine", *files, "-o", "posterior.epvi", "--json", folder=centre))
    summarised = call_json("summary", centre / "posterior.epvi")
    assert summarised["parameters"] == json.loads(out)["parameters"]
    assert json.loads(out)["stands_for"] == f"{sum(SITES.values())} rows in {len(SITES)} shards"

    summary = expected.summary()
    for name, found in summarised["parameters"].items():
        np.testing.assert_allclose(list(found.values()), list(summary[name].values()), rtol=1e-10, err_msg=name)
    posterior = epvi.load(centre / "posterior.epvi")
    drawn, one_process = posterior.sample(500, seed=1), expected.sample(500, seed=1)
    for name, values in one_process.items():
        np.testing.assert_allclose(drawn[name], values, rtol=1e-10, atol=1e-10, err_msg=name)
    np.testing.assert_allclose(posterior.mixture.sd(), expected.mixture.sd(), rtol=1e-10)
