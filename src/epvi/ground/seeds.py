"""Seeds: what a user gives (an int or a JAX key) becomes the key that inner functions take.

All numbers that keys are folded with are in the enums here, one for each kind of parent key, so that no two streams of
one key can be the same. Streams that are numbered (shards, rounds, stretches of a chain, chunks of draws) count from 1;
those that have a name are 0 or lie from `FIRST_NAMED` on, which no number reaches. A change here changes what a seed
gives.
"""

import enum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from epvi.ground.errors import EpviError
from epvi.ground.forked import refuse_after_fork

Seed = int | np.integer | jax.Array | np.ndarray

# Numbered streams stay below this, half of what 32 bits hold: files have at most a million shards.
FIRST_NAMED = 2**31


@enum.unique
class SeedStream(enum.IntEnum):
    """Streams of a posterior's seed; shard m, and what stands in for it, has stream m.

    COMMON is for the starts that all shards share, SPLIT deals the rows to shards, PRODUCT multiplies the fits, DRAWS
    are those that shards are asked to score in `epvi.fit`, SUPPORTS those at which group effects are evaluated, CHAINS
    is for NUTS on all rows. PARTS belongs to the key of such a request, which may be a seed itself: for the parts of
    the rows that tall shards score, of shard m the m-th stream of it.
    """

    COMMON = 0
    SPLIT = FIRST_NAMED
    PRODUCT = FIRST_NAMED + 1
    PARTS = FIRST_NAMED + 2
    DRAWS = FIRST_NAMED + 3
    SUPPORTS = FIRST_NAMED + 4
    CHAINS = FIRST_NAMED + 5


@enum.unique
class ProductStream(enum.IntEnum):
    """Streams of the key of a product, and of the keys of its rounds.

    START is for where chains start, for the search for modes before the first round of anchored sampling, and in each
    round for its anchors; the stretches of a chain, the rounds, and the chunks of a round's draws are numbered.
    """

    START = 0


@enum.unique
class RequestStream(enum.IntEnum):
    """What is appended to the words of a request's key: its draws, and its base draws of a standard Gaussian."""

    DRAWS = 0
    BASE = 1


@enum.unique
class PredictionStream(enum.IntEnum):
    """Streams of the seed of predictions: draws of θ (`to_arviz` takes the seed itself), and rows drawn anew."""

    DRAWS = 0
    ROWS = 1


def request_words(key: tuple[int, ...], stream: RequestStream) -> tuple[int, ...]:
    """The words of NumPy's seed for a stream of a request's key."""
    return (*key, int(stream))


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
