"""Fragments of rows in Parquet files, a model for them, and a quick fit on an engine."""

import numpy as np
import numpyro
import numpyro.distributions as dist
import pyarrow as pa
import pyarrow.parquet as parquet

import epvi

QUICK = epvi.NVI(1, num_starts=2, num_draws=8)
X = ["a", "b", "c"]


def line(x, y=None):
    """A linear regression."""
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def table(num_rows, seed, **changed):
    """Rows of one file; `changed` columns replace its own."""
    rng = np.random.default_rng(seed)
    x = rng.normal([1.0, -2.0, 0.0], [3.0, 0.5, 1.0], (num_rows, 3))
    y = (x - [1.0, -2.0, 0.0]) @ [0.3, -1.0, 0.5] + rng.normal(size=num_rows)
    columns = {**{name: x[:, i] for i, name in enumerate(X)}, "label": y, **changed}
    return pa.table({name: column for name, column in columns.items() if column is not None})


def written(folder, sizes=(30, 40, 20, 30), **changed):
    """Files of these numbers of rows; the changed columns, if any, are those of the third."""
    for i, size in enumerate(sizes):
        parquet.write_table(table(size, i, **(changed if i == 2 else {})), folder / f"part-{i}.parquet")
    return described(str(folder / "*.parquet"))


def described(source, **options):
    """The rows of the model."""
    return epvi.Rows(source, x=X, y="label", standardise=options.pop("standardise", True), **options)


def fitted(rows, engine=None, shards=4, **options):
    """A quick fit."""
    return epvi.fit(line, rows, shards, engine=engine, **{"inference": QUICK, "seed": 1, **options})


def same(a, b):
    """Whether two posteriors and their certificates are the same to the last bit."""
    theirs = [(p.mixture.means, p.mixture.roots, p.mixture.log_weights) for p in (a, *a.fits)]
    ours = [(p.mixture.means, p.mixture.roots, p.mixture.log_weights) for p in (b, *b.fits)]
    equal = all(
        np.array_equal(x, y) for one, other in zip(theirs, ours, strict=True) for x, y in zip(one, other, strict=True)
    )
    return equal and str(a.certificate) == str(b.certificate)
