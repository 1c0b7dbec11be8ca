"""Text from elsewhere as a message, a table or a terminal can have it.

Names of files, headers, labels and cells come from others, and a control character in them would be obeyed by the
terminal: it could hide or rewrite what is printed around it.
"""

import os


def shown(text: str | os.PathLike, most: int | None = None) -> str:
    """The text in one line, at most so many characters: what cannot be printed becomes a question mark."""
    return "".join(c if c.isprintable() else "?" for c in os.fspath(text)[:most])


def shown_lines(text: str) -> str:
    """The same for a text of several lines."""
    return "\n".join(shown(line) for line in text.split("\n"))
