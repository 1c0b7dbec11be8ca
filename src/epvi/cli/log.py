"""`-v` and `-vv`: what epvi logs, on stderr, one line per record. Without them nothing of the log is printed."""

import contextlib
import logging
import sys
from collections.abc import Iterator

import click

from epvi.ground.printable import shown

# The library's logger, by the name of the package.
LOGGER = logging.getLogger("epvi")

# Where in a context's `meta`, which verbs share with the group, the number of -v is.
_VERBOSITY = "epvi.verbosity"


def verbose() -> click.Option:
    """The option -v, which may stand before the verb and after it."""

    def add(ctx: click.Context, param: click.Parameter, count: int) -> None:
        ctx.meta[_VERBOSITY] = ctx.meta.get(_VERBOSITY, 0) + count

    text = "Log to stderr what is being done; -vv logs details too."
    return click.Option(["-v", "--verbose"], count=True, expose_value=False, callback=add, help=text)


def verbosity(ctx: click.Context) -> int:
    """How often -v was given, before the verb and after it."""
    return ctx.meta.get(_VERBOSITY, 0)


class _Lines(logging.Handler):
    """Writes a line per record to whatever stderr is at that moment.

    While a progress bar is shown, rich is in the place of stderr: it prints lines above the bar.
    """

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(shown(" ".join(self.format(record).splitlines())) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


@contextlib.contextmanager
def logged(verbosity: int) -> Iterator[None]:
    """Print what epvi logs: nothing with 0, INFO and above with 1, all with 2. Inside another of these, no more."""
    if any(isinstance(handler, _Lines) for handler in LOGGER.handlers):
        yield
        return
    # Without a handler of its own, Python would print warnings of a logger.
    handler = _Lines() if verbosity else logging.NullHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    level = LOGGER.level
    LOGGER.addHandler(handler)
    if verbosity:
        LOGGER.setLevel(logging.INFO if verbosity == 1 else logging.DEBUG)
    try:
        yield
    finally:
        LOGGER.setLevel(level)
        LOGGER.removeHandler(handler)
