"""The rows of Figure 3, as columns x and labels y, from one of three sources.

- simulated: normal columns with the means, scales and correlations of SUSY's, and labels of a logistic regression
- file: UCI's SUSY.csv.gz, streamed once into a Parquet file beside the results
- ten-thousand: 10,000 real rows (susy/susy_10000.npz in the folder that EPVI_DATA names)

A tenth of the rows is held out. Real columns are standardised with the moments of the fitted rows, and x has a first
column of ones.
"""

import os
from pathlib import Path
from typing import NamedTuple

from lab.strategies import Rows

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from posteriors import data_folder
from rich.progress import Progress, SpinnerColumn, TextColumn
from susy import COLUMNS, susy_like

LABEL = "signal"
_BLOCK_BYTES = 2**24


class Divided(NamedTuple):
    """Rows to fit, and held-out rows."""

    fitted: Rows
    held_out: Rows


def simulated(num_rows: int, seed: int) -> Divided:
    return _divided(susy_like(num_rows, seed))


def ten_thousand(seed: int) -> Divided:
    return standardised(*_divided(ten_thousand_rows(seed)))


def ten_thousand_rows(seed: int) -> Rows:
    """The 10,000 real rows in their own units, shuffled because the file is sorted."""
    file = data_folder(None) / "susy" / "susy_10000.npz"
    if not file.exists():
        raise SystemExit(f"{file} is not there: EPVI_DATA names the folder that holds susy/susy_10000.npz.")
    with np.load(file) as kept:
        x, y = kept["X"].astype(np.float32), kept["y"].astype(np.int8)
    order = np.random.default_rng([seed, 10_000]).permutation(len(y))
    return {"x": x[order], "y": y[order]}


def from_file(file: Path, folder: Path) -> Divided:
    """All rows of UCI's file; the last tenth is held out, as its authors did."""
    table = pyarrow.parquet.read_table(as_parquet(file, folder))
    x = np.stack([table[name].to_numpy() for name in COLUMNS], axis=1)
    return standardised(*_divided({"x": x, "y": table[LABEL].to_numpy()}))


def as_parquet(file: Path, folder: Path) -> Path:
    """Convert the file to Parquet, once; it has the label first, then 18 columns, and no header."""
    if not file.exists():
        raise SystemExit(f"{file} is not there: --susy names UCI's SUSY.csv.gz.")
    made = folder / "susy.parquet"
    if made.exists():
        return made
    folder.mkdir(parents=True, exist_ok=True)
    part = made.with_suffix(".part")
    schema = pa.schema([(LABEL, pa.int8()), *((name, pa.float32()) for name in COLUMNS)])
    try:
        _stream(file, part, schema)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, pa.ArrowException):
            raise SystemExit(f"{file} is not UCI's SUSY.csv.gz (a label and 18 numbers per line): {error}") from error
        if isinstance(error, OSError):
            raise SystemExit(f"{file} did not become {made}: {error}. Fetch it again, or make room.") from error
        raise
    os.replace(part, made)
    return made


def _stream(file: Path, part: Path, schema: pa.Schema) -> None:
    reading = pyarrow.csv.ReadOptions(column_names=schema.names, block_size=_BLOCK_BYTES)
    # Labels are written as 1.000000000000000000e+00.
    converting = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(schema.names, pa.float32()))
    with (
        Progress(SpinnerColumn(), TextColumn("{task.description}"), transient=True) as bar,
        pyarrow.csv.open_csv(file, reading, convert_options=converting) as batches,
        pyarrow.parquet.ParquetWriter(part, schema) as writer,
    ):
        task, count = bar.add_task(f"{file.name} to Parquet"), 0
        for batch in batches:
            writer.write_batch(batch.cast(schema))
            count += batch.num_rows
            bar.update(task, description=f"{file.name} to Parquet: {count:,} rows")


def standardised(fitted: Rows, held_out: Rows) -> Divided:
    """Both, standardised with the moments of the fitted rows, and with a first column of ones."""
    mean, sd = (np.asarray(moment(fitted["x"], axis=0, dtype=np.float64)) for moment in (np.mean, np.std))

    def changed(rows: Rows) -> Rows:
        x = np.ones((len(rows["y"]), len(mean) + 1), np.float32)
        x[:, 1:] = (rows["x"] - mean) / sd
        return {"x": x, "y": rows["y"]}

    return Divided(changed(fitted), changed(held_out))


def _divided(rows: Rows) -> Divided:
    cut = len(rows["y"]) - len(rows["y"]) // 10
    return Divided({n: c[:cut] for n, c in rows.items()}, {n: c[cut:] for n, c in rows.items()})
