"""Whether this process was forked from one in which JAX had computed: its threads are not here, and JAX waits for them.

Every way into a computation asks first, so that a fork is refused in a sentence instead of hanging for ever.
"""

import os
import sys

from epvi.ground.errors import EpviError

_lost = False


def refuse_after_fork() -> None:
    """Raise where JAX would hang."""
    if _lost:
        raise EpviError(
            "this process was forked from one in which JAX had already computed, where JAX cannot go on: start"
            ' processes with multiprocessing.get_context("spawn") or "forkserver", or fork before anything is computed.'
        )


def _look() -> None:
    """In the new process: had its parent used JAX?"""
    global _lost
    bridge = sys.modules.get("jax._src.xla_bridge")
    # JAX has no public way to tell; where this one is gone, a refusal is better than a process that hangs.
    began = getattr(bridge, "backends_are_initialized", lambda: True)
    _lost = _lost or (bridge is not None and began())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_look)
