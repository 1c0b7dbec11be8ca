"""Typed access to the JSON record of an untrusted file: every entry is read with its type and bounds.

Takes plain JSON; gives checked Python values. Texts are short and have no control characters, so that they are safe to
print on a terminal; numbers are finite and within the bounds that the caller gives.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any, SupportsFloat, TypeVar

from epvi.ground.printable import shown
from epvi.wire.envelope import Malformed

T = TypeVar("T")

# Characters of a text in a file. Judgement: room for a verdict with several sentences.
MOST_TEXT = 2000


class Record:
    """A JSON object with typed access to its entries."""

    def __init__(self, entries: Any, what: str = "record") -> None:
        if not isinstance(entries, dict):
            raise Malformed(f"its {what} is not a table")
        self._entries = entries
        self._what = what

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def any(self, key: str) -> Any:
        """An entry that must exist, of any type."""
        if key not in self._entries:
            raise Malformed(f"its {self._what} has no {key}")
        return self._entries[key]

    def text(self, key: str, most: int = MOST_TEXT) -> str:
        """A printable text."""
        return as_text(self.any(key), key, most)

    def whole(self, key: str, least: int, most: int) -> int:
        """A whole number within bounds."""
        value = self.any(key)
        if type(value) is not int or not least <= value <= most:
            raise Malformed(f"its {key} is not a whole number from {least:,} to {most:,}")
        return value

    def number(self, key: str) -> float:
        """A finite number."""
        return as_number(self.any(key), key)

    def truth(self, key: str) -> bool:
        """True or false."""
        value = self.any(key)
        if not isinstance(value, bool):
            raise Malformed(f"its {key} is neither true nor false")
        return value

    def fraction(self, key: str) -> Fraction:
        """A share from 0 to 1, written as "1/6"."""
        value = self.any(key)
        # Digits only: `Fraction` would expand "1e-999999999" to a billion digits.
        digits = re.fullmatch(r"(\d{1,18})(?:/(\d{1,18}))?", value, re.ASCII) if isinstance(value, str) else None
        over = int(digits[2] or 1) if digits else 0
        if not digits or over == 0 or int(digits[1]) > over:
            raise Malformed(f'its {key} is not a fraction from 0 to 1, such as "1/6"')
        return Fraction(int(digits[1]), over)

    def table(self, key: str) -> "Record":
        """A nested JSON object."""
        return Record(self.any(key), key)

    def list(self, key: str, item: Callable[[Any, str], T], most: int) -> tuple[T, ...]:
        """A list of checked items."""
        value = self.any(key)
        if not isinstance(value, list) or len(value) > most:
            raise Malformed(f"its {key} is not a list of at most {most:,} entries")
        return tuple(item(entry, key) for entry in value)

    def each(self, key: str, item: Callable[[Any, str], T]) -> Mapping[str, T]:
        """A table of checked items by name."""
        return {as_text(name, key): item(value, key) for name, value in self.table(key)._entries.items()}


def printable(text: str, most: int = MOST_TEXT) -> str:
    """The text as `as_text` accepts it: control characters replaced by question marks, and truncated."""
    return shown(text, most)


def as_text(value: Any, what: str, most: int = MOST_TEXT) -> str:
    """A printable text of at most so many characters."""
    if not isinstance(value, str) or len(value) > most or not value.isprintable():
        raise Malformed(f"its {what} is not a printable text of at most {most:,} characters")
    return value


def as_number(value: Any, what: str) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Malformed(f"its {what} is not a number")
    return float(value)


def finite_or_none(value: SupportsFloat) -> float | None:
    """The number, or None for NaN and infinities, which JSON does not have."""
    return float(value) if math.isfinite(value) else None


def number_or_nan(value: Any, what: str) -> float:
    """A finite number, or NaN for None."""
    return math.nan if value is None else as_number(value, what)


def as_texts(value: Any, what: str) -> tuple[str, ...]:
    """A list of printable texts."""
    if not isinstance(value, list):
        raise Malformed(f"its {what} is not a list of texts")
    return tuple(as_text(entry, what) for entry in value)
