"""`epvi certify`: draws for the sites to score, and a verdict by their scores."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from epvi.cli import options, rounds
from epvi.cli.output import Verb, about_posterior, busy, counted, give, size_of
from epvi.ground.printable import shown

if TYPE_CHECKING:
    from epvi.hub.posterior.posterior import Posterior
    from epvi.wire.request import Draws

NOT_TRUSTED = 3


@click.command(cls=Verb)
@rounds.posterior
@click.argument("scores", nargs=-1, metavar="[SCORES]...", type=options.PATH)
@rounds.draws("Write draws to this file, for the sites to score.")
@click.option("--num-draws", default=2048, show_default=True, type=click.IntRange(64, 2**20), help="How many draws.")
@click.option("--scores-only", is_flag=True, help="Ask for no moments: the answers cannot refine it then.")
@options.seed
@options.output("posterior", required=False)
@rounds.accept_missing
@click.option("--strict", is_flag=True, help=f"End with exit code {NOT_TRUSTED} when it is not to be trusted.")
@options.as_json
@click.pass_context
def certify(context: click.Context, posterior: Path, scores: tuple[Path, ...], **said: Any) -> None:
    """Say whether POSTERIOR can be trusted, by what all sites say of draws of it.

    First write the draws and send them to the sites (epvi score answers them there); then name the files that the sites
    have sent. No rows and no model code are needed. "Do not trust" is an answer and no error: the exit code is 0, or 3
    with --strict.

    \b
    Examples:
      epvi certify posterior.epvi --draws draws.epvi                      (for the sites)
      epvi certify posterior.epvi scores-*.epvi -o posterior.epvi         (with what they sent)
    """
    if bool(scores) == (said["draws"] is not None):
        raise click.UsageError("Give either --draws FILE, to ask the sites, or the files of scores that they sent.")
    from epvi.files import load_only
    from epvi.hub.posterior.posterior import Posterior

    if said["draws"] is not None:
        options.refuse_given(
            context, "output", "accept_missing", "strict", why="it goes with the sites' scores, not with --draws"
        )
        _ask(posterior, load_only(posterior, Posterior), said)
        return
    options.refuse_given(
        context, "num_draws", "scores_only", "seed", why="it goes with --draws: these were drawn already"
    )
    _certify(context, load_only(posterior, Posterior), scores, said)


def _ask(file: Path, posterior: "Posterior", said: dict[str, Any]) -> None:
    with busy("drawing"):
        draws = posterior.ask(said["num_draws"], moments=not said["scores_only"], seed=said["seed"])
        path = draws.save(said["draws"])
    words = [
        f"Wrote {shown(path)} ({size_of(path)}): {counted(len(draws.theta), 'draw')} for {_sites(draws)}.",
        rounds.at_every_site(path, draws),
        f"Then, here:    epvi certify {shown(file)} scores-*.epvi -o {shown(file)}",
    ]
    if not said["scores_only"]:
        words.append(f"or, if it asks for it: epvi refine {shown(file)} scores-*.epvi -o posterior-2.epvi")
    data = {"file": str(path), "num_draws": len(draws.theta), "shards": [share.label for share in draws.shares]}
    give(said["as_json"], data, "\n".join(words))


def _sites(draws: "Draws") -> str:
    return "one shard" if len(draws.shares) == 1 else f"{len(draws.shares)} shards"


def _certify(context: click.Context, posterior: "Posterior", scores: tuple[Path, ...], said: dict[str, Any]) -> None:
    from epvi.hub.trust.certify import certify as certify_scores

    with busy(f"weighing the draws of {len(scores)} files"):
        found = certify_scores(posterior, rounds.load_scores(scores), accept_missing=said["accept_missing"])
        made = posterior.with_certificate(found)
        summary = made.summary()
    data = about_posterior(made, summary)
    words = [str(found), f"\n{summary}", f"\n{made.stands_for}."]
    if said["output"] is not None:
        path = made.save(said["output"])
        data["file"] = str(path)
        words.append(f"Wrote {shown(path)} ({size_of(path)}).")
    give(said["as_json"], data, "\n".join(words))
    if said["strict"] and not found.status.ok:
        context.exit(NOT_TRUSTED)
