"""Seeds: what a user gives (an int or a JAX key) becomes the key that inner functions take."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from epvi.ground.errors import EpviError
from epvi.ground.forked import refuse_after_fork

Seed = int | np.integer | jax.Array | np.ndarray


def as_key(seed: Any) -> jax.Array:
    """The typed JAX key for an int, a typed key, or an old-style `PRNGKey` array."""
    refuse_after_fork()
    if isinstance(seed, int | np.integer):
        if not 0 <= seed < 2**32:
            raise EpviError(f"seed is {seed}: take a whole number from 0 to 4294967295, or a JAX key.")
        return jax.random.key(int(seed))
    if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        if seed.shape != ():
            raise EpviError(f"seed is an array of {seed.shape} keys: pass one key.")
        kind = jax.random.key_impl(seed)
        if kind != jax.random.key_impl(jax.random.key(0)):
            raise EpviError(f"seed is a key of kind {kind}: pass a whole number, or a key of JAX's default kind.")
        return seed
    if isinstance(seed, jax.Array | np.ndarray) and seed.dtype == np.uint32 and seed.shape == (2,):
        return jax.random.wrap_key_data(jnp.asarray(seed))
    raise EpviError("seed is neither an int nor a JAX key: pass for example seed=0.")
