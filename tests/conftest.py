"""Strict from the start: shapes are checked, ranks and dtypes are not promoted, and x64 is off, as a user has it."""

import os
import tempfile

from jaxtyping import install_import_hook

install_import_hook("epvi", "beartype.beartype")
# Not in the user's own cache.
os.environ.setdefault("EPVI_CACHE", os.path.join(tempfile.gettempdir(), f"epvi-tests-{os.getuid()}"))

import jax  # noqa: E402
import jaxtyping  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture
def untyped():
    """As a user has it: without the type checker of the tests, so that epvi's own sentences answer."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
