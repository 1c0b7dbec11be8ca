"""What users write into an option: NAME=VALUE pairs, lists of columns, levels, ranges and values."""

import json
from collections.abc import Sequence
from typing import Any

import click


def pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE of every time that the option was given."""
    made = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or not value or name in made:
            raise click.UsageError(f"{option} {text}: write {option} NAME=VALUE, each name once.")
        made[name] = value
    return made


def names(text: str) -> list[str]:
    """The names in A,B,C."""
    return [name.strip() for name in text.split(",") if name.strip()]


def levels(text: str) -> list[Any]:
    """The levels of a column: numbers if all of them are, otherwise text."""
    from epvi.site.rows.numerals import is_plain

    values = names(text)
    return [float(value) for value in values] if all(map(is_plain, values)) else values


def limits(column: str, text: str) -> tuple[float | None, float | None]:
    """The ends of LOW:HIGH; None for an end that is left out."""
    low, colon, high = text.partition(":")
    try:
        if not colon:
            raise ValueError
        return (float(low) if low else None), (float(high) if high else None)
    except ValueError:
        raise click.UsageError(f"--limits {column}={text}: write {column}=LOW:HIGH.") from None


def value(text: str) -> Any:
    """A value in JSON, or else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
