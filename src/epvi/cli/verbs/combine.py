"""`epvi combine`: the shards' files become the posterior of all rows."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from epvi.cli import options
from epvi.cli.option_values import ProductOptions
from epvi.cli.output import Verb, about_posterior, busy, counted, give, size_of, trusted
from epvi.ground.errors import EpviError
from epvi.ground.printable import shown

if TYPE_CHECKING:
    from epvi.hub.agreement.conflict import Conflict
    from epvi.hub.posterior.posterior import Posterior
    from epvi.wire.shard_fit import ShardFit

# Of how many shards, and parameters of each, the conflict report prints details: about a screen. Judgement.
_MOST_FLAGGED, _MOST_PARAMETERS = 4, 10


@click.command(cls=Verb)
@click.argument("files", nargs=-1, required=True, type=options.PATH)
@options.output("posterior", required=False)
@click.option(
    "--check",
    is_flag=True,
    help="Print the conflict report: how far each shard's fit is from the product of the others.",
)
@click.option(
    "--accept-unconverged",
    is_flag=True,
    help="Also take fits whose status is not ok: not converged, or flat in a direction.",
)
@options.product
@options.seed
def combine(
    files: tuple[Path, ...],
    output: Path | None,
    check: bool,
    accept_unconverged: bool,
    product: ProductOptions,
    seed: int,
) -> None:
    """Multiply the shards' fits in FILES into the posterior of all rows. No rows and no model code are needed.

    A posterior among the FILES is updated: late shards' fits are multiplied in, in the place of their stand-ins, and
    its certificate and refinement, which were of the posterior without them, are dropped. Statistics of columns (epvi
    stats) among the FILES are left out.

    \b
    Examples:
      epvi combine site-*.epvi -o posterior.epvi --check
      epvi combine posterior.epvi site-4.epvi -o posterior.epvi      (site 4 came late)
    """
    if output is None and not check:
        raise click.UsageError("Missing option '-o' / '--output' (or --check, to look only).")
    from epvi.hub.posterior.combine import combine as combine_fits
    from epvi.hub.posterior.posterior import Posterior
    from epvi.wire.shard_fit import ShardFit

    with busy(f"combining {counted(len(files), 'file')}"):
        found = _fits_and_posteriors(files)
        if any(isinstance(made, Posterior) for _, made in found):
            posterior = _updated(found, check, accept_unconverged)
        else:
            fits = [made for _, made in found if isinstance(made, ShardFit)]
            posterior = combine_fits(fits, product.as_product(), accept_unconverged=accept_unconverged, seed=seed)
        report = posterior.conflict() if check else None
        summary = posterior.summary()
    data = about_posterior(posterior, summary)
    words = [str(summary), f"\n{posterior.stands_for}. {trusted(posterior)}"]
    if report is not None:
        data["conflict"] = report.to_json()
        words += [f"\n{report}", *_in_detail(report)]
    if output is not None:
        path = posterior.save(output)
        data["file"] = str(path)
        words.append(f"\nWrote {shown(path)} ({size_of(path)}).")
    give(data, "\n".join(words))


def _in_detail(report: "Conflict") -> list[str]:
    """A table for each shard that is flagged: its parameters that are farthest from the others."""
    flagged = [shard for shard, flag in zip(report.shards, report.flagged, strict=True) if flag]
    tables = {
        report.labels[report.shards.index(shard)]: report.shard(shard).splitlines() for shard in flagged[:_MOST_FLAGGED]
    }
    return [
        "\n".join([f"\nshard {label}, by parameter:", *lines[: 1 + _MOST_PARAMETERS]])
        for label, lines in tables.items()
    ]


def _updated(found: "list[tuple[Path, ShardFit | Posterior]]", check: bool, accept_unconverged: bool) -> "Posterior":
    """The one posterior among them, with the late shards' fits in it."""
    from epvi.hub.posterior.posterior import Posterior
    from epvi.wire.shard_fit import ShardFit

    posteriors = [(path, made) for path, made in found if isinstance(made, Posterior)]
    fits = [made for _, made in found if isinstance(made, ShardFit)]
    if len(posteriors) > 1:
        raise EpviError(
            f"{posteriors[0][0]} and {posteriors[1][0]} are both posteriors: combine the shards' files, or update one"
            " posterior with late shards."
        )
    ((path, posterior),) = posteriors
    if not fits and not check:
        raise EpviError(f"{path} is a posterior already: name the late shards' files beside it.")
    options.refuse_given("product", "samples", "seed", why=f"{path} keeps what it was made with")
    # Without late shards as it is, with its certificate, which would not be that of a new product.
    return posterior.update(*fits, accept_unconverged=accept_unconverged) if fits else posterior


def _fits_and_posteriors(files: tuple[Path, ...]) -> "list[tuple[Path, ShardFit | Posterior]]":
    """What `*.epvi` names of a folder: statistics lie beside fits and are left out; a round's files were not meant."""
    from epvi.files import load_any
    from epvi.hub.posterior.posterior import Posterior
    from epvi.wire.answer import Scores
    from epvi.wire.column_stats import Stats
    from epvi.wire.shard_fit import ShardFit

    found, left_out = [], []
    for path in files:
        made = load_any(path)
        if isinstance(made, Stats):
            left_out.append(shown(path))
        elif isinstance(made, ShardFit | Posterior):
            found.append((path, made))
        else:
            held, verb = ("a site's scores", "certify") if isinstance(made, Scores) else ("draws to score", "score")
            raise EpviError(f"{path} holds {held}, no shard's fit: leave it out here; epvi {verb} takes it.")
    if not found:
        raise EpviError(f"{left_out[0]} holds statistics of columns (epvi pool takes them): name the shards' fits.")
    if left_out:
        what = f"{counted(len(left_out), 'file')} of statistics of columns, no shards' fits"
        click.echo(f"epvi: left out {what}: {', '.join(left_out)}.", err=True)
    return found
