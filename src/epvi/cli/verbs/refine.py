"""`epvi refine`: a step towards the posterior of all rows, by the sites' scores."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from epvi.cli import options, rounds
from epvi.cli.output import Verb, about_posterior, busy, give, size_of, trusted
from epvi.cli.writing import check_kind
from epvi.ground.printable import shown

if TYPE_CHECKING:
    from epvi.hub.posterior.posterior import Posterior
    from epvi.hub.refine.step import Step
    from epvi.wire.answer import Scores
    from epvi.wire.request import Draws


@click.command(cls=Verb)
@rounds.posterior
@click.argument("scores", nargs=-1, required=True, metavar="SCORES...", type=options.PATH)
@options.output("posterior")
@rounds.draws("The file to write: the next draws, for the sites to score.", "draws-2.epvi, then draws-3.epvi, ...")
@click.option("--last", is_flag=True, help="Take no further step: only confirm or undo the last one.")
@rounds.accept_missing
def refine(
    posterior: Path, scores: tuple[Path, ...], output: Path, draws: Path | None, last: bool, accept_missing: bool
) -> None:
    """Improve POSTERIOR by all sites' SCORES of its draws: a natural-gradient step on the ELBO of all rows.

    It writes the posterior after the step and draws of it, for the sites to score again: the SCORES of the next round
    confirm the step or undo it. When no step is worth another round it says so, and writes the posterior with its
    certificate and no draws.

    \b
    Examples:
      epvi refine posterior.epvi   scores-*.epvi -o posterior-2.epvi --draws draws-2.epvi
      epvi refine posterior-2.epvi scores-*.epvi -o posterior-3.epvi --last    (scores of draws-2.epvi)
    """
    if last:
        options.refuse_given("draws", why="--last takes no step that would be asked about")
    from epvi.files import load_only
    from epvi.hub.posterior.posterior import Posterior
    from epvi.hub.refine.refine import refine as refine_once
    from epvi.hub.refine.refine import settle

    before = load_only(posterior, Posterior)
    answers = rounds.load_scores(scores)
    target = draws or check_kind(Path(f"draws-{_rounds_of(before.step) + 2}.epvi"), "draws")
    with busy("refining"):
        made = (settle if last else refine_once)(before, answers, accept_missing=accept_missing)
        summary = made.summary()
    path = made.save(output)
    data = {**about_posterior(made, summary), "file": str(path), "draws": None}
    words = [*_what_became(before.step, made.step)]
    if made.step is not None and made.step.waits:
        asked = _next_draws(made, answers[0])
        data["draws"] = str(asked.save(target))
        words += _next_round(path, target, asked, made.step)
    else:
        words += [*([] if last else ["Nothing is left to improve."]), str(trusted(made)), f"\n{summary}"]
        words += [f"\n{made.stands_for}.", f"Wrote {shown(path)} ({size_of(path)})."]
    give(data, "\n".join(words))


def _rounds_of(step: "Step | None") -> int:
    return 0 if step is None else step.rounds


def _next_draws(posterior: "Posterior", answer: "Scores") -> "Draws":
    """As many as in the round before, from the same seed: only then are two rounds compared draw by draw."""
    import numpy as np

    adapts = posterior.step is not None and posterior.step.adapts
    return posterior.ask(answer.asked.num_draws, moments=not adapts, seed=np.asarray(answer.asked.key, np.uint32))


def _what_became(before: "Step | None", after: "Step | None") -> list[str]:
    """Whether the last step was kept."""
    if before is None or before.before is None or after is None:
        return []
    if after.gained > before.gained:
        return [f"The last step is confirmed: it gained {after.gained - before.gained:.3g} nats."]
    return ["The last step is undone: it gained nothing."]


def _next_round(path: Path, target: Path, draws: "Draws", step: "Step") -> list[str]:
    found = [] if step.certificate is None else [f"Before the next step: {step.certificate.text}"]
    after = path.with_name(f"posterior-{step.rounds + 2}.epvi")
    return [
        *found,
        f"Step {step.rounds} is taken, and not confirmed yet. Wrote {shown(path)} ({size_of(path)}), and its draws to"
        f" {shown(target)} ({size_of(target)}).",
        rounds.at_every_site(target, draws),
        f"Then, here:    epvi refine {shown(path)} scores-*.epvi -o {shown(after)}    (--last: no further step)",
    ]
