"""Combine shard fits into the posterior of all rows.

Takes the fits of all shards in any order; checks that their shares of the prior sum to 1, aligns exchangeable
parameters between shards, and multiplies the mixtures.
"""

from collections.abc import Iterable

from epvi.ground.log import logger
from epvi.ground.printable import shown
from epvi.ground.seeds import Seed
from epvi.ground.verb import verb
from epvi.hub.posterior.multiplied import checked_and_multiplied
from epvi.hub.posterior.posterior import Posterior
from epvi.hub.product.result import Product
from epvi.wire.shard_fit import ShardFit


@verb("combining the fits")
def combine(
    fits: Iterable[ShardFit], product: Product | None = None, *, accept_unconverged: bool = False, seed: Seed = 0
) -> Posterior:
    """The posterior of all the data from the fits of its shards, by `product` as in `epvi.multiply`.

    Fits of different models or of the same rows are refused, and unconverged ones unless `accept_unconverged` is True.
    """
    made = Posterior(*checked_and_multiplied(fits, product, seed, accept_unconverged=accept_unconverged))
    logger.info("combined %s: %s", shown(made.stands_for), shown(made.status.text))
    return made
