"""Recognises numbers written as text, and numbers that float64 cannot hold exactly.

Takes text or numbers as they were read; finds those that would change their meaning as float64 numbers.
"""

import dataclasses
import decimal
import re
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

# Words in text that stand for a missing value.
MISSING = ("", "NA", "NaN", "nan", "null", "?")
# float64 has a 53-bit significand: it holds every integer up to 2^53 exactly, but not 2^53 + 1.
EXACT = 2**53
_NUMBER = r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*"
_HEXADECIMAL = r"\s*[+-]?0[xX][0-9a-fA-F]+\s*"
# Leading zeros, as in postal codes.
_PADDED = r"\s*[+-]?0[0-9]+\s*"
# Integers that may exceed 2^53, which has 16 digits.
_LONG = r"\s*[+-]?[0-9]{16,}(\.0*)?\s*"
# Decimals of up to 15 significant digits survive the conversion to float64 and back (DBL_DIG of IEEE 754 binary64).
_SURE_DIGITS = 15
# Most distinct levels that are counted for an error message, which keeps a column of free text from filling memory.
# Judgement: nobody declares as many levels.
MOST_LEVELS = 10_000

# Patterns of text that was meant as numbers -> the remedy, given when all values that are not numbers match.
_NEAR_NUMBERS = {
    r"\s*[+-]?[0-9]+([.,'_ ][0-9]{3})*([.,][0-9]+)?\s*": (
        "write numbers with a decimal point and without thousands separators"
    ),
    rf"{_NUMBER}%\s*": "write numbers without percent signs",
    _HEXADECIMAL: "write hexadecimal numbers in decimal",
}


def is_plain(text: str) -> bool:
    """Whether text is a decimal number without leading zeros, which would make it a code."""
    return bool(re.fullmatch(_NUMBER, text)) and not re.fullmatch(_PADDED, text)


def is_number(text: str) -> bool:
    """Whether text is a decimal number."""
    return bool(re.fullmatch(_NUMBER, text))


def first_inexact(values: np.ndarray) -> int | None:
    """The first integer beyond ±2^53, which float64 may not hold exactly; None if there is none."""
    if values.dtype.kind not in "iu" or values.dtype.itemsize < 8 or not values.size:
        return None
    if values.max() <= EXACT and values.min() >= -EXACT:
        return None
    return int(values[(values > EXACT) | (values < -EXACT)].flat[0])


def _compute() -> Any:
    """`pyarrow.compute`, untyped: its functions are generated at import, so type checkers do not know them."""
    import pyarrow.compute

    return pyarrow.compute


def first_inexact_decimal(column: "pa.ChunkedArray", least: int = 0) -> decimal.Decimal | None:
    """The first decimal of magnitude at least `least` that float64 cannot hold exactly, or None."""
    import pyarrow as pa

    pc = _compute()
    if column.type.precision <= _SURE_DIGITS:
        return None
    digits = pc.utf8_trim(pc.replace_substring(column.cast(pa.string()), ".", ""), characters="-0")
    doubtful = column.filter(pc.greater(pc.utf8_length(digits), _SURE_DIGITS))
    large = (one for one in doubtful.to_pylist() if abs(one) >= least)
    return next((one for one in large if decimal.Decimal(repr(float(one))) != one), None)


def first_misread(column: "pa.ChunkedArray") -> int | None:
    """The first row whose text parses as a number but means something else: hexadecimal, or beyond ±2^53."""
    import pyarrow as pa

    pc = _compute()

    def rows(pattern: str) -> Any:
        return pc.indices_nonzero(pc.match_substring_regex(column, f"^({pattern})$"))

    coded = rows(_HEXADECIMAL)
    long = rows(_LONG)
    if len(long):
        # Filter in float64 first, which is fast: few long numbers are too large, and only those are compared exactly.
        near = pc.utf8_ltrim(pc.utf8_trim_whitespace(column.take(long)), characters="+")
        long = long.filter(pc.greater_equal(pc.abs(near.cast(pa.float64())), float(EXACT)))
    large = (row for row in long.to_pylist() if abs(int(column[row].as_py().partition(".")[0])) > EXACT)
    return min([*coded[:1].to_pylist(), *[row for row in [next(large, None)] if row is not None]], default=None)


def why_misread(text: str) -> str:
    """What is wrong with text that `first_misread` found, and the remedy, as the end of a sentence."""
    if re.fullmatch(_HEXADECIMAL, text):
        return "which is hexadecimal: write it in decimal, or give the column's levels if it is a code"
    return TOO_LARGE


TOO_LARGE = (
    "of which float64 would lose digits (it holds whole numbers up to 2^53): if it is a code, make it text with levels,"
    " otherwise change its unit"
)


@dataclasses.dataclass
class TextProfile:
    """The values of a text or categorical column that should hold numbers, summarised for an error message."""

    # Number of values that are not missing.
    filled: int = 0
    # How many of them are not numbers.
    bad: int = 0
    # The first value that is not a number.
    example: str | None = None
    # A value that cannot be a level, being neither text nor a plain number.
    nameless: Any = None
    # Distinct values (a categorical dtype's categories) in order, and whether any row has them.
    levels: dict[str, bool] = dataclasses.field(default_factory=dict)
    # Pattern -> remedy, for the patterns that all values match which are not numbers.
    remedies: dict[str, str] = dataclasses.field(default_factory=lambda: dict(_NEAR_NUMBERS))

    def add(self, values: list[Any], counts: list[int]) -> None:
        """Add distinct values with their counts; a category that no row has counts 0."""
        for value, count in zip(values, counts, strict=True):
            self.filled += count
            level = repr(value.strip()) if isinstance(value, str) else str(value)
            if level in self.levels or len(self.levels) <= MOST_LEVELS:
                self.levels[level] = self.levels.get(level, False) or count > 0
            if count and isinstance(value, str) and not is_number(value):
                self.bad += count
                self.example = self.example or value.strip()
                self.remedies = {p: remedy for p, remedy in self.remedies.items() if re.fullmatch(p, value)}

    def why(self) -> str:
        """Why the column was not read as numbers, and the remedy; empty when it is real text."""
        if not self.bad:
            return "its values are numbers, so turn them into numbers"
        if self.remedies:
            return next(iter(self.remedies.values()))
        if 2 * self.bad < self.filled:
            return (
                f"{self.bad:,} of its {self.filled:,} values are no numbers (as {str(self.example)[:24]!r}), so correct"
                " those or mark them as missing (NA)"
            )
        return ""
