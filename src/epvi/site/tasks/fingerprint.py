"""Computes fingerprints, by which sites compare models and rows without showing them.

A model's fingerprint consists of values: its log prior at fixed points θ, directional derivatives of the log prior
there, and its log likelihood of synthetic rows. Two sites have the same model when these numbers agree, however the
code is written and whatever versions run it. Fixed arguments are hashed one by one, so that one that differs can be
named. Rows have a keyed hash (HMAC) that does not depend on their order; without the key nobody can test a guess of the
rows.
"""

import hashlib
import hmac
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from epvi.ground.float64 import promotion_allowed
from epvi.site.derivatives.passes import Programs
from epvi.site.model.example_runs import FEW
from epvi.site.rows.columns import Columns, let_go

# Fingerprints are stored in files and compared with those of other sites, so _POINTS, _GOLDEN, _ODD and _HALF cannot
# change without making older files incompatible.
# Points θ at which a model's values are compared. Judgement: one could agree by chance.
_POINTS = 3
# (√5 − 1)/2, the golden ratio minus 1: fractional parts of its multiples are spread evenly and never repeat (Weyl).
_GOLDEN = 0.6180339887498949
# Size of the blocks in which rows are hashed, on which the hash does not depend: values in a block (4 MB in float64,
# which stay in the cache), working memory per row in values, and least number of rows. Judgement.
_VALUES, _BESIDES, _FEWEST = 2**19, 8, 2**8
# Odd multipliers with well mixed bits: the increment of SplitMix64 (2⁶⁴ divided by the golden ratio), and the second
# prime of xxHash64.
_ODD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
# Half of a 64-bit word: by this shift the high bits reach the low ones.
_HALF = np.uint64(32)


def model_values(programs: Programs, columns: Columns) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Log prior and its directional derivatives at fixed points; and the log likelihood of synthetic rows there."""
    d = programs.target.space.dim
    theta = 0.7 * np.sin(2 * np.pi * _GOLDEN * np.arange(1, _POINTS * d + 1)).reshape(_POINTS, d)
    block = {name: _made_up(i, column) for i, (name, column) in enumerate(sorted(columns.items()))}
    with jax.enable_x64(True), promotion_allowed():
        # A program for a single point, called for each, compiles in half the time of one for all points.
        found = [programs.at_one_point()(point, block) for point in theta]
    prior, slopes, likelihood = (np.array(part) for part in zip(*found, strict=True))
    if any(column.dtype.kind == "b" for column in block.values()):
        # Another site may store a boolean column as numbers: rows with the values 2 and 3 cannot be compared then.
        likelihood[:, FEW // 2 :] = np.nan
    return _rounded(np.concatenate([prior, slopes])), _rounded(likelihood)


def _rounded(values: Any) -> tuple[float, ...]:
    """Values rounded to 12 digits, a few more than are compared; those that are not finite become NaN."""
    return tuple(float(f"{x:.12g}") if np.isfinite(x) else np.nan for x in np.asarray(values, np.float64).ravel())


def _made_up(i: int, column: np.ndarray) -> np.ndarray:
    """A synthetic column of integers, which most dtypes can hold: 0 and 1 in the first half, 0 to 3 in the second."""
    shape = (FEW, *column.shape[1:])
    numbers = ((np.arange(np.prod(shape, dtype=int)) * (2 * i + 3) // 2 + i) % 4).reshape(shape)
    numbers[: FEW // 2] %= 2
    return numbers.astype(column.dtype)


def hash_fixed(fixed: Mapping[str, Any]) -> dict[str, str]:
    """A short hash of each fixed argument; numbers, strings and collections of them by value, whatever their type.

    Functions and other objects are hashed by name only: what they compute shows in the model's values.
    """
    return {name: hashlib.sha256(_canonical(value)).hexdigest()[:16] for name, value in sorted(fixed.items())}


def _canonical(value: Any) -> bytes:
    if value is None or isinstance(value, str):
        return repr(value).encode()
    if isinstance(value, Mapping):
        return b"{" + b",".join(sorted(_canonical(key) + b":" + _canonical(entry) for key, entry in value.items()))
    try:
        # Adding zero turns −0.0 into 0.0, which is equal but has other bits.
        array = np.asarray(value, np.float64) + 0.0
    except (TypeError, ValueError, OverflowError):
        if isinstance(value, list | tuple):
            return b"[" + b",".join(map(_canonical, value))
        return getattr(value, "__qualname__", type(value).__qualname__).encode()
    return f"{array.shape}".encode() + array.astype("<f8").tobytes()


def hash_rows(columns: Columns, key: str) -> str:
    """A keyed hash of the rows, which depends neither on their order nor on the dtypes that hold the same values."""
    return hash_each(columns, [len(next(iter(columns.values())))], key)[0]


def hash_each(columns: Columns, sizes: Sequence[int], key: str) -> list[str]:
    """The hash of the rows of each of several shards, whose rows lie one after the other; each has some."""
    names, ends = sorted(columns), np.cumsum(sizes)
    starts = ends - sizes
    shapes = [columns[name].shape[1:] for name in names]
    block = max(_FEWEST, _VALUES // (_BESIDES + sum(map(math.prod, shapes))))
    totals = np.zeros((2, len(sizes)), np.uint64)
    for start in range(0, int(ends[-1]), block):
        lanes = _mixed([columns[name][start : min(start + block, int(ends[-1]))] for name in names])
        # The shards with rows in this block, and where their rows begin in it.
        first, last = np.searchsorted(ends, [start, start + lanes.shape[1] - 1], side="right")
        begins = np.maximum(starts[first : last + 1] - start, 0)
        # A sum of the hashes of all rows does not depend on their order.
        totals[:, first : last + 1] += np.add.reduceat(lanes, begins, axis=1)
        let_go(columns, start, start + block)
    # With different keys the same rows would go unnoticed: four hexadecimal digits show whether keys differ, and do not
    # reveal them.
    shown = hmac.new(key.encode(), b"key", hashlib.sha256).hexdigest()[:4]
    said = [repr((n, names, shapes, total)) for n, total in zip(map(int, sizes), totals.T.tolist(), strict=True)]
    return [shown + hmac.new(key.encode(), one.encode(), hashlib.sha256).hexdigest()[:32] for one in said]


def _mixed(blocks: list[np.ndarray]) -> np.ndarray:
    """Hash each row to two 64-bit numbers, its state after all words and the sum of the states, (2, n)."""
    lanes = np.empty((2, len(blocks[0])), np.uint64)
    lanes.T[:] = _ODD
    for block in blocks:
        for rows, words in _words(block):
            some = lanes[:, rows]
            last, way = some
            for word in words.T:
                last ^= word
                last *= _ODD[0]
                last ^= last >> _HALF
                way += last
            lanes[:, rows] = some
    # Final mixing of all bits: without it, swapping labels between rows could leave the sum unchanged.
    for odd in _ODD:
        lanes *= odd
        lanes ^= lanes >> _HALF
    return lanes


def _words(block: np.ndarray) -> Iterator[tuple[Any, np.ndarray]]:
    """Groups of rows, and their values as 64-bit words that depend on the values only, not on the dtype.

    Two values share a word if float32 represents all values of a row exactly, as is usual; otherwise each value takes a
    word. Adding zero turns −0.0 into 0.0, which is equal but has other bits.
    """
    values = block.reshape(len(block), -1)
    if np.can_cast(values.dtype, np.float32):
        yield slice(None), _pairs(values)
        return
    wide = np.add(values, 0.0, dtype="<f8")
    short = _in_float32(wide)
    if np.all(short):
        yield slice(None), _pairs(wide)
    elif not np.any(short):
        yield slice(None), _singles(wide)
    else:
        yield short, _pairs(wide[short])
        yield ~short, _singles(wide[~short])


def _pairs(values: np.ndarray) -> np.ndarray:
    num = values.shape[1]
    if num == 1:
        return np.add(values, 0.0, dtype="<f4", casting="same_kind").view("<u4").astype("<u8")
    pairs = np.empty((len(values), num + num % 2), "<f4")
    pairs[:, num:] = 0
    np.add(values, 0.0, out=pairs[:, :num], dtype=np.float32, casting="same_kind")
    return pairs.view("<u8")


def _singles(wide: np.ndarray) -> np.ndarray:
    # Bits inverted, because a float64 near 5e−324 has the same bits as a pair of a float32 and zero.
    return np.invert(wide.view("<u8"))


def _in_float32(wide: np.ndarray) -> np.ndarray:
    """Which rows have only values that float32 represents exactly."""
    short = np.ones(len(wide), bool)
    with np.errstate(over="ignore", under="ignore"):
        for value in wide.T:
            short &= value.astype(np.float32) == value
            if not np.any(short):
                break
    return short
