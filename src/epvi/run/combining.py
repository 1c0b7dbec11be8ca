"""The end of a run: fits that ended well are multiplied, and an error of later rounds keeps them."""

import contextlib
from collections.abc import Iterator, Sequence

from epvi.ground.errors import EpviError
from epvi.ground.log import logger
from epvi.ground.printable import shown
from epvi.ground.seeds import Seed
from epvi.hub.posterior.multiplied import multiplied
from epvi.hub.posterior.posterior import Posterior
from epvi.hub.product.result import Product
from epvi.hub.trust.certify import warn_of
from epvi.run.failures import ShardError, kept_in
from epvi.run.progress import ShardProgress
from epvi.wire.shard_fit import ShardFit


def combined(fits: list[ShardFit], product: Product | None, seed: Seed, bar: ShardProgress) -> Posterior:
    """The product of the fits; refused if one of them did not end well."""
    bad = [fit for fit in fits if not fit.can_be_multiplied]
    if bad:
        good = tuple(fit for fit in fits if fit.can_be_multiplied)
        others = f" So it was with {len(bad) - 1} more." if len(bad) > 1 else ""
        raise ShardError(f"shard {bad[0].label} did not end well: {bad[0].status}{others}{kept_in(good)}", good)
    bar.say("multiplying")
    made = Posterior(*multiplied(fits, product, seed))
    logger.info("multiplied %d fits: %s", len(fits), shown(made.status.text))
    return made


@contextlib.contextmanager
def kept_in_errors(fits: Sequence[ShardFit]) -> Iterator[None]:
    """A context whose errors keep the fits, so that epvi.combine can still multiply them."""
    try:
        yield
    except ShardError:
        raise
    except EpviError as error:
        raise ShardError(f"{error}{kept_in(tuple(fits))}", tuple(fits)) from error


def log_end(posterior: Posterior, seconds: float) -> None:
    """Log the verdict, and how long the run took."""
    if posterior.certificate is not None:
        logger.info("verdict: %s", posterior.certificate.text)
        warn_of(posterior.certificate.agreement)
    logger.info("fitted %s in %.2f s", shown(posterior.stands_for), seconds)
