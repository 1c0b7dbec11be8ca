"""Verbs that look into files: `show` and `summary`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from epvi.cli import options
from epvi.cli.output import Verb, about_fit, about_posterior, give, size_of, trusted
from epvi.ground.printable import shown

if TYPE_CHECKING:
    from epvi.hub.posterior.posterior import Posterior
    from epvi.wire.shard_fit import ShardFit

_file = click.argument("file", type=options.PATH)


@click.command(cls=Verb)
@_file
@options.as_json
def show(file: Path, as_json: bool) -> None:
    """Print everything that is in FILE, in words: what leaves a site when the file is sent.

    \b
    Example:
      epvi show site-3.epvi
    """
    from epvi.cli.describe import scores as exchanged
    from epvi.cli.describe import shard_fit as contents
    from epvi.files import load_any
    from epvi.wire.answer import Scores
    from epvi.wire.column_stats import Stats
    from epvi.wire.request import Draws
    from epvi.wire.shard_fit import ShardFit

    found = load_any(file)
    if isinstance(found, Stats):
        give(as_json, {"kind": "stats", "columns": found.as_json()}, contents.of_stats(file, found))
    elif isinstance(found, ShardFit):
        data = {"kind": "shard", **about_fit(found), "mixture": contents.numbers(found.mixture, found.space)}
        give(as_json, data, contents.of_fit(file, found))
    elif isinstance(found, Draws):
        give(as_json, exchanged.draws_json(found), exchanged.of_draws(file, found))
    elif isinstance(found, Scores):
        give(as_json, exchanged.scores_json(found), exchanged.of_scores(file, found))
    else:
        data = {"kind": "posterior", "fits": [about_fit(fit) for fit in found.fits]}
        give(as_json, {**about_posterior(found, found.summary()), **data}, contents.of_posterior(file, found))


@click.command(cls=Verb)
@_file
@click.option("--quantiles", default="0.05,0.5,0.95", show_default=True, help="Which quantiles to print.")
@options.as_json
def summary(file: Path, quantiles: str, as_json: bool) -> None:
    """Print means, sds and quantiles of the parameters of a posterior, or of one shard alone.

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
        said = f"shard {found.label} alone, with {found.prior} of the prior"
        data["stands_for"], words = said, f"{said[0].upper()}{said[1:]}: {found.num_rows:,} rows. {found.status}"
    give(as_json, data, f"{made}\n\n{words}\n{shown(file)} ({size_of(file)})")


def _alone(fit: "ShardFit") -> "Posterior":
    from epvi.hub.posterior.posterior import Posterior
    from epvi.hub.product.result import ProductMixture

    return Posterior(ProductMixture(fit.mixture, None, None, fit.status), fit.space, (fit,))
