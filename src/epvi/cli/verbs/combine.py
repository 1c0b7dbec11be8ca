"""The verb of the centre: `combine`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from epvi.cli import options
from epvi.cli.output import Verb, about_posterior, busy, counted, give, size_of, trusted
from epvi.ground.errors import EpviError
from epvi.ground.printable import shown

if TYPE_CHECKING:
    from epvi.hub.agreement.conflict import Conflict
    from epvi.hub.posterior.posterior import Posterior
    from epvi.wire.shard_fit import ShardFit


@click.command(cls=Verb)
@click.argument("files", nargs=-1, required=True, type=options.PATH)
@options.output("posterior", required=False)
@click.option("--check", is_flag=True, help="Print the conflict report: how far each shard is from the others.")
@click.option("--accept-unconverged", is_flag=True, help="Take also fits that did not end well.")
@options.product
@options.seed
@options.as_json
@click.pass_context
def combine(context: click.Context, files: tuple[Path, ...], **said: Any) -> None:
    """Multiply the shards' FILES into the posterior of all rows. No rows and no model code are needed.

    A posterior among the FILES is updated: late shards are put in, and take the place of what stood in for them.
    Statistics of columns (epvi stats) among them are left out.

    \b
    Examples:
      epvi combine site-*.epvi -o posterior.epvi --check
      epvi combine posterior.epvi site-4.epvi -o posterior.epvi      (site 4 came late)
    """
    if said["output"] is None and not said["check"]:
        raise click.UsageError("Missing option '-o' / '--output' (or --check, to look only).")
    with busy(f"combining {len(files)} files"):
        posterior = _combined(context, files, said)
        report = posterior.conflict() if said["check"] else None
        summary = posterior.summary()
    data = about_posterior(posterior, summary)
    words = [str(summary), f"\n{posterior.stands_for}. {trusted(posterior)}"]
    if report is not None:
        data["conflict"] = report.to_json()
        words += [f"\n{report}", *_in_detail(report)]
    if said["output"] is not None:
        path = posterior.save(said["output"])
        data["file"] = str(path)
        words.append(f"\nWrote {shown(path)} ({size_of(path)}).")
    give(said["as_json"], data, "\n".join(words))


def _in_detail(report: "Conflict") -> list[str]:
    """The farthest parameters of the shards that are flagged."""
    flagged = [shard for shard, flag in zip(report.shards, report.flagged, strict=True) if flag]
    tables = {report.labels[report.shards.index(shard)]: report.shard(shard).splitlines() for shard in flagged[:4]}
    return ["\n".join([f"\nshard {label}, by parameter:", *lines[:11]]) for label, lines in tables.items()]


def _combined(context: click.Context, files: tuple[Path, ...], said: dict[str, Any]) -> "Posterior":
    from epvi.hub.posterior.combine import combine as combine_fits
    from epvi.hub.posterior.posterior import Posterior
    from epvi.wire.shard_fit import ShardFit

    found = _fits_and_posteriors(files)
    posteriors = [(path, made) for path, made in found if isinstance(made, Posterior)]
    fits = [made for _, made in found if isinstance(made, ShardFit)]
    accept = said["accept_unconverged"]
    if not posteriors:
        return combine_fits(fits, options.make_product(said), accept_unconverged=accept, seed=said["seed"])
    if len(posteriors) > 1:
        raise EpviError(
            f"{posteriors[0][0]} and {posteriors[1][0]} are both posteriors: combine the shards' files, or update one"
            " posterior with late shards."
        )
    if not fits and not said["check"]:
        raise EpviError(f"{posteriors[0][0]} is a posterior already: name the late shards' files beside it.")
    options.refuse_given(context, "product", "samples", "seed", why=f"{posteriors[0][0]} keeps what it was made with")
    if not fits:
        # As it is, with its certificate, which would not be that of a new product.
        return posteriors[0][1]
    return posteriors[0][1].update(*fits, accept_unconverged=accept)


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
