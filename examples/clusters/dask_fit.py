"""Rows that stay on a Dask cluster: files that its workers read, and a Dask data frame.

Run: pip install 'epvi[dask]' "dask[dataframe]" && python examples/clusters/dask_fit.py

It starts a cluster of two processes on this machine; dask.distributed.Client("tcp://...") takes the place of one's own.
"""

import tempfile
from pathlib import Path
from typing import Any, cast

import dask.dataframe
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from dask.distributed import Client, LocalCluster

import epvi
from epvi.models import logistic, simulate_logistic

NUM_FILES, ROWS_PER_FILE, NUM_COLUMNS = 8, 5_000, 4


def write(folder: Path) -> list[str]:
    """Some files of simulated rows; gives the names of the columns of x."""
    rows, _ = simulate_logistic(NUM_FILES * ROWS_PER_FILE, NUM_COLUMNS, seed=0)
    names = [f"x{j}" for j in range(NUM_COLUMNS)]
    for i in range(NUM_FILES):
        some = slice(i * ROWS_PER_FILE, (i + 1) * ROWS_PER_FILE)
        columns = {name: rows["x"][some, j] for j, name in enumerate(names)}
        parquet.write_table(pa.table({**columns, "label": rows["y"][some]}), folder / f"part-{i}.parquet")
    return names


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        names = write(Path(temporary))
        files = f"{temporary}/*.parquet"
        # Workers of one thread each; epvi needs no more in a process.
        with (
            LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
            Client(cluster) as client,
        ):
            engine = epvi.engines.Dask(client)
            posterior = epvi.fit(logistic, epvi.Rows(files, x=names, y="label", standardise=True), engine=engine)
            print(f"{len(posterior.fits)} shards, the first of them {posterior.fits[0].label}")
            print(posterior.summary())
            print(posterior.certificate)

            # The partitions of a data frame are fragments too, and the data frame brings its cluster.
            frame = cast(Any, dask.dataframe.read_parquet(files))
            again = epvi.fit(logistic, epvi.Rows(frame, x=names, y="label", standardise=True))
            same = np.array_equal(again.mixture.means, posterior.mixture.means)
            print(f"from the data frame: {'the same posterior' if same else 'another posterior'}")

            units = dict(posterior.fits[0].made_of.standardised)
            held_out = epvi.Rows(frame, x=names, y="label", standardise=units)
            print(f"log predictive density per row: {epvi.log_predictive(logistic, posterior, held_out):.4f}")


if __name__ == "__main__":
    main()
