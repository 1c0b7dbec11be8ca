"""Asks something of each fragment once, where it is, without keeping its rows there.

Takes an engine, fragments of one piece each, and a task; gives the results in the order of the fragments, or the error
of the first that has none.
"""

from collections.abc import Callable, Sequence
from typing import Any

from epvi.engines.engine import Engine
from epvi.engines.performing import WorkerLostError, packed_each, packed_task, result_of
from epvi.fragments.reading import unread
from epvi.ground.errors import EpviError
from epvi.wire.fragment import Fragment

# What was to be done with a fragment, by the name of the work.
_DONE = {"look": "read", "predict": "predicted"}


def each_fragment(
    engine: Engine, fragments: Sequence[Fragment], function: Callable[[Any, Any, Any], Any], shared: Any, name: str
) -> list[Any]:
    """The results of `function(shared, rows, i)` for the rows of each fragment, which are not read yet."""
    found: dict[int, Any] = {}
    handles = engine.place(fragments, unread)
    try:
        each = [packed_each(i) for i in range(len(fragments))]
        for i, made in engine.map(packed_task(function, shared), handles, each=each, name=name):
            found[i] = result_of(made)
    finally:
        engine.release(handles)
    wrong = sorted(i for i, result in found.items() if isinstance(result, Exception))
    if wrong:
        first, which = found[wrong[0]], fragments[wrong[0]].pieces[0].said
        told = isinstance(first, EpviError) and not isinstance(first, WorkerLostError)
        said = first.clause if told else f"{which} could not be {_DONE[name]}: {first}"
        more = f" So it is with {len(wrong) - 1} more fragments." if len(wrong) > 1 else ""
        raise EpviError(f"{said}.{more}")
    return [found[i] for i in range(len(fragments))]
