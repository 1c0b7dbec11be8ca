"""A real tall data set, if it is available: was a flight of January to June 2001 more than 15 minutes late?

Three million flights of the US DOT, from the npm package vega-datasets (flights-3m.parquet, BSD-3-Clause), with 17
columns computed from time and distance.
"""

from pathlib import Path

import numpy as np
import pyarrow.parquet

Rows = dict[str, np.ndarray]

USUAL = Path(__file__).parents[2] / "shared" / "data" / "flights" / "flights-3m.parquet"
LATE = 15  # minutes


def flights(path: Path, num_rows: int | None, seed: int) -> Rows:
    """Columns x (n, 17) in float32 and labels y in int8, in random order; the first `num_rows` of them, or all.

    x has ones, three harmonics of the hour, three of the weekday, one of the day of the year, and log distance,
    standardised, with its square.
    """
    table = pyarrow.parquet.read_table(path, columns=["date", "delay", "distance"])
    order = np.random.default_rng(seed).permutation(table.num_rows)[:num_rows]
    time, delay, distance = (table[name].to_numpy()[order] for name in ("date", "delay", "distance"))
    minute, day = time.astype("datetime64[m]").astype(np.int64), time.astype("datetime64[D]").astype(np.int64)
    new_year = time.astype("datetime64[Y]").astype("datetime64[D]").astype(np.int64)
    log = np.log(distance)
    far = (log - np.mean(log)) / np.std(log)
    columns = [
        np.ones(len(order)),
        *_harmonics(minute / 1440, 3),
        *_harmonics(day / 7, 3),
        *_harmonics((day - new_year) / 365, 1),
        far,
        far**2 - 1,
    ]
    return {"x": np.column_stack(columns).astype(np.float32), "y": (delay > LATE).astype(np.int8)}


def _harmonics(turns: np.ndarray, most: int) -> list[np.ndarray]:
    angles = [2 * np.pi * k * (turns % 1) for k in range(1, most + 1)]
    return [wave(angle) for angle in angles for wave in (np.sin, np.cos)]
