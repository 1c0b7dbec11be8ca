"""Numbers as text says them, and numbers of which float64 would lose digits.

Takes text or numbers as they were read; gives what cannot be taken for a number without a change of meaning.
"""

import dataclasses
import decimal
import re
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

# Words that stand for a value that is not there.
MISSING = ("", "NA", "NaN", "nan", "null", "?")
# float64 holds every whole number up to here, and not the next one.
EXACT = 2**53
_NUMBER = r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*"
_HEXADECIMAL = r"\s*[+-]?0[xX][0-9a-fA-F]+\s*"
_PADDED = r"\s*[+-]?0[0-9]+\s*"
_LONG = r"\s*[+-]?[0-9]{16,}(\.0*)?\s*"
# Decimals of so many digits come back from float64 as they were.
_SURE_DIGITS = 15
# So many levels are told apart where levels are counted: a column of free text would take too much memory.
MOST_LEVELS = 10_000

# What text may be that was to be numbers, when all of it that is no number looks alike: the pattern and the remedy.
_ALIKE = {
    r"\s*[+-]?[0-9]+([.,'_ ][0-9]{3})*([.,][0-9]+)?\s*": (
        "write numbers with a decimal point and without thousands separators"
    ),
    rf"{_NUMBER}%\s*": "write numbers without percent signs",
    _HEXADECIMAL: "write hexadecimal numbers in decimal",
}


def is_plain(text: str) -> bool:
    """Whether text is a decimal number and nothing else that it could mean: no code with zeros before it."""
    return bool(re.fullmatch(_NUMBER, text)) and not re.fullmatch(_PADDED, text)


def is_number(text: str) -> bool:
    """Whether text is a decimal number."""
    return bool(re.fullmatch(_NUMBER, text))


def first_inexact(values: np.ndarray) -> int | None:
    """The first whole number that is too large for float64, None if there is none."""
    if values.dtype.kind not in "iu" or values.dtype.itemsize < 8 or not values.size:
        return None
    if values.max() <= EXACT and values.min() >= -EXACT:
        return None
    return int(values[(values > EXACT) | (values < -EXACT)].flat[0])


def _compute() -> Any:
    """Arrow's functions on arrays, which it makes when it is loaded: no checker of types knows them."""
    import pyarrow.compute

    return pyarrow.compute


def first_shortened(column: "pa.ChunkedArray", least: int = 0) -> decimal.Decimal | None:
    """The first decimal number, of those of at least this size, of which float64 loses digits, or None."""
    import pyarrow as pa

    pc = _compute()
    if column.type.precision <= _SURE_DIGITS:
        return None
    digits = pc.utf8_trim(pc.replace_substring(column.cast(pa.string()), ".", ""), characters="-0")
    doubtful = column.filter(pc.greater(pc.utf8_length(digits), _SURE_DIGITS))
    large = (one for one in doubtful.to_pylist() if abs(one) >= least)
    return next((one for one in large if decimal.Decimal(repr(float(one))) != one), None)


def first_odd(column: "pa.ChunkedArray") -> int | None:
    """The first row whose text would lose its meaning as a number: hexadecimal, or too large."""
    import pyarrow as pa

    pc = _compute()

    def rows(pattern: str) -> Any:
        return pc.indices_nonzero(pc.match_substring_regex(column, f"^({pattern})$"))

    coded = rows(_HEXADECIMAL)
    long = rows(_LONG)
    if len(long):
        # float64 decides what it can: many numbers are long, and few too long.
        near = pc.utf8_ltrim(pc.utf8_trim_whitespace(column.take(long)), characters="+")
        long = long.filter(pc.greater_equal(pc.abs(near.cast(pa.float64())), float(EXACT)))
    large = (row for row in long.to_pylist() if abs(int(column[row].as_py().partition(".")[0])) > EXACT)
    return min([*coded[:1].to_pylist(), *[row for row in [next(large, None)] if row is not None]], default=None)


def why_odd(text: str) -> str:
    """What is wrong with such a number, and the remedy."""
    if re.fullmatch(_HEXADECIMAL, text):
        return "which is hexadecimal: write it in decimal, or give the column's levels if it is a code"
    return TOO_LARGE


TOO_LARGE = (
    "of which float64 would lose digits (it holds whole numbers up to 2^53): if it is a code, make it text with levels,"
    " otherwise change its unit"
)


@dataclasses.dataclass
class Look:
    """What was found where there should be numbers: how many values, how many are no numbers, and which levels.

    `levels` are those that there could be, in order, and whether any row has them; `alike` are patterns that all values
    have that are no numbers; `nameless` is a value that no level can name.
    """

    filled: int = 0
    bad: int = 0
    strange: str | None = None
    nameless: Any = None
    levels: dict[str, bool] = dataclasses.field(default_factory=dict)
    alike: dict[str, str] = dataclasses.field(default_factory=lambda: dict(_ALIKE))

    def add(self, values: list[Any], counts: list[int]) -> None:
        """Take in values and how often each is there, which may be never."""
        for value, count in zip(values, counts, strict=True):
            self.filled += count
            level = repr(value.strip()) if isinstance(value, str) else str(value)
            if level in self.levels or len(self.levels) <= MOST_LEVELS:
                self.levels[level] = self.levels.get(level, False) or count > 0
            if count and isinstance(value, str) and not is_number(value):
                self.bad += count
                self.strange = self.strange or value.strip()
                self.alike = {pattern: said for pattern, said in self.alike.items() if re.fullmatch(pattern, value)}

    def why(self) -> str:
        """What may have made text of the column, and the remedy; empty when it looks like text."""
        if not self.bad:
            return "its values are numbers, so turn them into numbers"
        if self.alike:
            return next(iter(self.alike.values()))
        if 2 * self.bad < self.filled:
            return (
                f"{self.bad:,} of its {self.filled:,} values are no numbers (as {str(self.strange)[:24]!r}), so mend"
                " those or mark them as missing (NA)"
            )
        return ""
