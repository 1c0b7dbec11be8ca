"""Strict from the start: shapes are checked, ranks and dtypes are not promoted, and x64 is off, as a user has it."""

from jaxtyping import install_import_hook

install_import_hook("epvi", "beartype.beartype")

import jax  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
