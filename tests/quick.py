"""Which cases of many run with the quick tests."""

import pytest


def quick_for(names, few):
    """All names, but those that are not among the few with the slow tests: compiling takes the time."""
    assert set(few) <= set(names)
    return [name if name in few else pytest.param(name, marks=pytest.mark.slow) for name in names]
