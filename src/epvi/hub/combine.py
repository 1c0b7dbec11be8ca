"""Shard fits -> `Posterior`, or a refusal that says what to do.

Takes the fits of all shards in any order; checks that their shares make up the prior once, brings exchangeable
parameters into one order, and multiplies the mixtures.
"""

from collections import Counter
from collections.abc import Iterable

import jax

from epvi.alignment import aligned
from epvi.errors import EpviError
from epvi.handover import ShardFit
from epvi.hub.posterior import Posterior
from epvi.hub.product import multiply
from epvi.hub.product.result import Product
from epvi.seeds import Seed, as_key

# Shard m uses the m-th key; the product's is out of their reach.
_PRODUCT_KEY = 2**31 + 1


def combine(fits: Iterable[ShardFit], product: Product | None = None, *, seed: Seed = 0) -> Posterior:
    """The posterior of all the data from the fits of its shards, by `product` as in `epvi.multiply`."""
    fits = _sorted(fits)
    _check_shares(fits)
    _check_spaces(fits)
    _check_statuses(fits)
    mixtures = aligned(fits[0].space, [fit.mixture for fit in fits])
    made = multiply(mixtures, product, seed=jax.random.fold_in(as_key(seed), _PRODUCT_KEY))
    return Posterior(made, fits[0].space, tuple(fits))


def _sorted(fits: Iterable[ShardFit]) -> list[ShardFit]:
    if isinstance(fits, ShardFit) or not isinstance(fits, Iterable):
        raise EpviError("fits is not a list: pass a list of shard fits.")
    made = list(fits)
    if not made:
        raise EpviError("there are no fits to combine: pass at least one.")
    for fit in made:
        if not isinstance(fit, ShardFit):
            raise EpviError(f"one of the fits is a {type(fit).__name__}: pass what epvi.fit_shard gives.")
    return sorted(made, key=lambda fit: fit.shard)


def _check_shares(fits: list[ShardFit]) -> None:
    twice = [shard for shard, count in Counter(fit.shard for fit in fits).items() if count > 1]
    if twice:
        raise EpviError(f"shard {twice[0]} is there twice, and its rows would count twice: leave one out.")
    sizes = sorted({fit.num_shards for fit in fits})
    if len(sizes) > 1:
        raise EpviError(f"some fits are of {sizes[0]} shards and some of {sizes[1]}: fit all with the same number.")
    total = sum(fit.prior for fit in fits)
    if total != 1:
        missing = sorted(set(range(1, sizes[0] + 1)) - {fit.shard for fit in fits})
        which = f" (missing: {', '.join(map(str, missing))})" if missing else ""
        raise EpviError(
            f"the shards' shares of the prior sum to {total}, not to 1{which}: add the missing shards, or fit the"
            " others with shares that sum to 1 (prior=...)."
        )


def _check_spaces(fits: list[ShardFit]) -> None:
    first = fits[0]
    for fit in fits[1:]:
        if fit.space.signature() != first.space.signature():
            raise EpviError(
                f"shard {fit.label} has the parameters ({fit.space.describe()}) and shard {first.label} has"
                f" ({first.space.describe()}): fit all shards with one model, in which the parameters have one order."
            )


def _check_statuses(fits: list[ShardFit]) -> None:
    for fit in fits:
        if not fit.status.ok:
            raise EpviError(f"shard {fit.label} did not end well: {fit.status}")
