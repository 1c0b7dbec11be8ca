"""`epvi summary`: means, sds and quantiles of a posterior's parameters."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from epvi.cli import options
from epvi.cli.output import Verb, about_posterior, give, size_of, trusted
from epvi.ground.printable import shown

if TYPE_CHECKING:
    from epvi.hub.posterior.posterior import Posterior
    from epvi.wire.shard_fit import ShardFit

# Probabilities, the defaults of `Posterior.summary`: the median and an interval of nine tenths.
_QUANTILES = "0.05,0.5,0.95"


@click.command(cls=Verb)
@click.argument("file", type=options.PATH)
@click.option("--quantiles", default=_QUANTILES, show_default=True, help="Probabilities of the quantiles to print.")
def summary(file: Path, quantiles: str) -> None:
    """Print means, sds and quantiles of the parameters of a posterior, or of one shard's fit.

    A posterior with a certificate is summarised with its importance weights, where they are even enough.

    \b
    Example:
      epvi summary posterior.epvi
    """
    try:
        probabilities = tuple(float(one) for one in quantiles.split(","))
    except ValueError:
        raise click.UsageError(f"--quantiles {quantiles}: write probabilities, as in 0.05,0.5,0.95.") from None
    from epvi.files import load_only
    from epvi.hub.posterior.posterior import Posterior
    from epvi.wire.shard_fit import ShardFit

    found = load_only(file, ShardFit, Posterior)
    posterior = _alone(found) if isinstance(found, ShardFit) else found
    made = posterior.summary(probabilities)
    data = about_posterior(posterior, made)
    words = f"{posterior.stands_for}. {trusted(posterior)}"
    if isinstance(found, ShardFit):
        alone = f"shard {found.label} alone, with {found.prior} of the prior"
        data["stands_for"], words = alone, f"{alone[0].upper()}{alone[1:]}: {found.num_rows:,} rows. {found.status}"
    give(data, f"{made}\n\n{words}\n{shown(file)} ({size_of(file)})")


def _alone(fit: "ShardFit") -> "Posterior":
    from epvi.hub.posterior.posterior import Posterior
    from epvi.hub.product.result import ProductMixture

    return Posterior(ProductMixture(fit.mixture, None, None, fit.status), fit.space, (fit,))
