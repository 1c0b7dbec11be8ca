"""Replaces unprintable characters in text from other people before it is printed.

File names, headers, labels and values may contain control characters, which a terminal would obey: they could hide or
rewrite what is printed around them.
"""

import os


def shown(text: str | os.PathLike, most: int | None = None) -> str:
    """The first `most` characters on one line; unprintable ones, also line breaks, become question marks."""
    part = os.fspath(text)[:most]
    return part if part.isprintable() else "".join(c if c.isprintable() else "?" for c in part)


def shown_lines(text: str) -> str:
    """Like `shown`, but keeps line breaks."""
    return "\n".join(shown(line) for line in text.split("\n"))
