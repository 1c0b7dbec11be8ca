"""`epvi certify`: draws for the sites to score, and a verdict by their scores."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from epvi.cli import options, rounds
from epvi.cli.output import Verb, about_posterior, busy, counted, give, size_of
from epvi.ground.printable import shown

if TYPE_CHECKING:
    from epvi.hub.trust.certify import Certificate

# The exit code of "do not trust": the next after those of refusals (1) and of wrong usage (2).
NOT_TRUSTED = 3
# The exit code of a posterior that can be trusted, of shards that disagree.
DISAGREE = 4
# How many draws sites score: by default as many as `Posterior.ask` makes, at least as many as weights need to be judged
# by, and at most as many as a file of draws may hold.
NUM_DRAWS, FEWEST_DRAWS, MOST_DRAWS = 2048, 64, 2**20


@dataclasses.dataclass(frozen=True)
class AskOptions:
    """The draws that the sites are asked to score, and the file to write them to."""

    draws: Path | None
    num_draws: int
    scores_only: bool
    seed: int


@click.command(cls=Verb)
@rounds.posterior
@click.argument("scores", nargs=-1, metavar="[SCORES]...", type=options.PATH)
@options.gathered(
    "asked",
    AskOptions,
    rounds.draws("The file to write: draws of the posterior, for the sites to score."),
    click.option(
        "--num-draws",
        default=NUM_DRAWS,
        show_default=True,
        type=click.IntRange(FEWEST_DRAWS, MOST_DRAWS),
        help="How many draws to write.",
    ),
    click.option(
        "--scores-only",
        is_flag=True,
        help="Ask for scores without moments: sites send less, but epvi refine needs moments.",
    ),
    options.seed,
)
@options.output("posterior", required=False)
@rounds.accept_missing
@click.option(
    "--strict",
    is_flag=True,
    help=f'Exit with code {NOT_TRUSTED} if the verdict is "do not trust", and with {DISAGREE} if shards disagree.',
)
def certify(
    posterior: Path,
    scores: tuple[Path, ...],
    asked: AskOptions,
    output: Path | None,
    accept_missing: bool,
    strict: bool,
) -> None:
    """Say whether POSTERIOR can be trusted, by importance weights of its draws.

    First write draws and send them to the sites, which score them with their rows (epvi score); then name the files of
    SCORES that they sent back. No rows and no model code are needed. There are two verdicts. The first is "trust",
    "trust with corrected weights", with many parameters also "trust means and sds", or "do not trust": whether this is
    the posterior of the model and the sites' rows. The second says whether the sites agree: one with swapped labels or
    other units does not, nor does one that differs. Both are answers, no errors: the exit code is 0; with --strict it
    is 3 for "do not trust", and otherwise 4 if sites disagree.

    \b
    Examples:
      epvi certify posterior.epvi --draws draws.epvi                      (for the sites)
      epvi certify posterior.epvi scores-*.epvi -o posterior.epvi         (with what they sent)
    """
    if bool(scores) == (asked.draws is not None):
        raise click.UsageError("Give either --draws FILE, to ask the sites, or the files of scores that they sent.")
    if asked.draws is not None:
        options.refuse_given(
            "output", "accept_missing", "strict", why="it goes with the sites' scores, not with --draws"
        )
        _ask(posterior, asked, asked.draws)
        return
    options.refuse_given("num_draws", "scores_only", "seed", why="it goes with --draws: these were drawn already")
    found = _certify(posterior, scores, accept_missing, output)
    if strict and not found.status.ok:
        click.get_current_context().exit(NOT_TRUSTED)
    if strict and not found.agreement.status.ok:
        click.get_current_context().exit(DISAGREE)


def _ask(file: Path, asked: AskOptions, target: Path) -> None:
    """Write draws of the posterior in a file, and say what the sites do with them."""
    from epvi.files import load_only
    from epvi.hub.posterior.posterior import Posterior

    posterior = load_only(file, Posterior)
    with busy("drawing"):
        draws = posterior.ask(asked.num_draws, moments=not asked.scores_only, seed=asked.seed)
        path = draws.save(target)
    num_draws = counted(len(draws.theta), "draw")
    words = [
        f"Wrote {shown(path)} ({size_of(path)}): {num_draws} for {counted(len(draws.shares), 'shard')}.",
        rounds.at_every_site(path, draws),
        f"Then, here:    epvi certify {shown(file)} scores-*.epvi -o {shown(file)}",
    ]
    if not asked.scores_only:
        words.append(f"or, if the verdict asks for it: epvi refine {shown(file)} scores-*.epvi -o posterior-2.epvi")
    data = {"file": str(path), "num_draws": len(draws.theta), "shards": [share.label for share in draws.shares]}
    give(data, "\n".join(words))


def _certify(file: Path, scores: tuple[Path, ...], accept_missing: bool, output: Path | None) -> "Certificate":
    """Print the verdicts, and write the posterior with its certificate."""
    from epvi.files import load_only
    from epvi.hub.posterior.posterior import Posterior
    from epvi.hub.trust.certify import certify as certify_scores

    posterior = load_only(file, Posterior)
    with busy(f"computing importance weights from {counted(len(scores), 'file')} of scores"):
        found = certify_scores(posterior, rounds.load_scores(scores), accept_missing=accept_missing)
        made = posterior.with_certificate(found)
        summary = made.summary()
    data = about_posterior(made, summary)
    words = [str(found), f"\n{summary}", f"\n{made.stands_for}."]
    if output is not None:
        path = made.save(output)
        data["file"] = str(path)
        words.append(f"Wrote {shown(path)} ({size_of(path)}).")
    give(data, "\n".join(words))
    return found
