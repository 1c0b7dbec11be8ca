"""`epvi show`: what is in a file, before it is sent."""

from pathlib import Path

import click

from epvi.cli import options
from epvi.cli.output import Verb, about_fit, about_posterior, give


@click.command(cls=Verb)
@click.argument("file", type=options.PATH)
def show(file: Path) -> None:
    """Print what is in FILE, before it is sent.

    A shard's fit, statistics, draws and scores are printed in full; long lists, and matrices of more than 30
    parameters, only with --json. Of a posterior the status, certificate and summary are printed, and whose fits are in
    it.

    \b
    Examples:
      epvi show site-3.epvi
      epvi show scores-3-of-6.epvi --json
    """
    from epvi.cli.describe.column_stats import stats_text
    from epvi.cli.describe.draws import draws_json, draws_text
    from epvi.cli.describe.mixture import mixture_json
    from epvi.cli.describe.posterior import posterior_text
    from epvi.cli.describe.scores import scores_json, scores_text
    from epvi.cli.describe.shard_fit import fit_text
    from epvi.files import load_any
    from epvi.wire.answer import Scores
    from epvi.wire.column_stats import Stats
    from epvi.wire.request import Draws
    from epvi.wire.shard_fit import ShardFit

    found = load_any(file)
    if isinstance(found, Stats):
        give({"kind": "stats", "columns": found.as_json()}, stats_text(file, found))
    elif isinstance(found, ShardFit):
        data = {"kind": "shard", **about_fit(found), "mixture": mixture_json(found.mixture, found.space)}
        data["point"] = None if found.point is None else found.point.tolist()
        give(data, fit_text(file, found))
    elif isinstance(found, Draws):
        give(draws_json(found), draws_text(file, found))
    elif isinstance(found, Scores):
        give(scores_json(found), scores_text(file, found))
    else:
        data = {"kind": "posterior", "fits": [about_fit(fit) for fit in found.fits]}
        give({**about_posterior(found, found.summary()), **data}, posterior_text(file, found))
