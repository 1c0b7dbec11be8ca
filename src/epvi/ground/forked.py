"""Detects a process forked after its parent used JAX: JAX would wait forever for threads that a fork does not copy.

Every public computation checks first, so that the user gets an error instead of a process that hangs.
"""

import os
import sys

from epvi.ground.errors import EpviError

_unusable = False


def refuse_after_fork() -> None:
    """Raise an error if this process was forked after its parent used JAX."""
    if _unusable:
        raise EpviError(
            "this process was forked from one in which JAX had already computed, so JAX would hang here: start"
            ' processes with multiprocessing.get_context("spawn") or "forkserver", or fork before anything is computed.'
        )


def _check_parent() -> None:
    """Runs in the child after a fork: records whether the parent had used JAX."""
    global _unusable
    bridge = sys.modules.get("jax._src.xla_bridge")
    # JAX has no public function for this. If a version lacks this private one, refuse: better than to hang.
    began = getattr(bridge, "backends_are_initialized", lambda: True)
    _unusable = _unusable or (bridge is not None and began())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_check_parent)
