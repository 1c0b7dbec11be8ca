"""Verbs of the centre in the rounds after the first: `certify` and `refine`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from epvi.cli import options
from epvi.cli.output import Verb, about_posterior, busy, counted, give, size_of, trusted
from epvi.cli.writing import check_kind
from epvi.ground.printable import shown

if TYPE_CHECKING:
    from epvi.hub.posterior.posterior import Posterior
    from epvi.hub.refine.refine import Step
    from epvi.wire.answer import Scores
    from epvi.wire.request import Draws

F = TypeVar("F", bound=Callable[..., Any])

NOT_TRUSTED = 3


def _draws(said: str) -> Callable[[F], F]:
    def check(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
        return path if path is None else check_kind(path, "draws")

    return click.option("--draws", type=options.PATH, callback=check, help=said)


_posterior = click.argument("posterior", metavar="POSTERIOR", type=options.PATH)
_accept_missing = click.option(
    "--accept-missing", is_flag=True, help="Take it as the posterior of the shards that are there."
)


@click.command(cls=Verb)
@_posterior
@click.argument("scores", nargs=-1, metavar="[SCORES]...", type=options.PATH)
@_draws("Write draws to this file, for the sites to score.")
@click.option("--num-draws", default=2048, show_default=True, type=click.IntRange(64, 2**20), help="How many draws.")
@click.option("--scores-only", is_flag=True, help="Ask for no moments: the answers cannot refine it then.")
@options.seed
@options.output("posterior", required=False)
@_accept_missing
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
        _at_every_site(path, draws),
        f"Then, here:    epvi certify {shown(file)} scores-*.epvi -o {shown(file)}",
    ]
    if not said["scores_only"]:
        words.append(f"or, if it asks for it: epvi refine {shown(file)} scores-*.epvi -o posterior-2.epvi")
    data = {"file": str(path), "num_draws": len(draws.theta), "shards": [share.label for share in draws.shares]}
    give(said["as_json"], data, "\n".join(words))


def _sites(draws: "Draws") -> str:
    return "one shard" if len(draws.shares) == 1 else f"{len(draws.shares)} shards"


def _at_every_site(path: Path, draws: "Draws") -> str:
    share = draws.shares[-1]
    return f"At every site: epvi score MODEL {shown(path)} --rows ROWS --shard {share.shard}/{share.num_shards}"


def _certify(context: click.Context, posterior: "Posterior", scores: tuple[Path, ...], said: dict[str, Any]) -> None:
    from epvi.hub.trust.certify import certify as certify_scores

    with busy(f"weighing the draws of {len(scores)} files"):
        found = certify_scores(posterior, _loaded(scores), accept_missing=said["accept_missing"])
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


def _loaded(files: tuple[Path, ...]) -> "list[Scores]":
    from epvi.files import load_only
    from epvi.wire.answer import Scores

    return [load_only(file, Scores) for file in files]


@click.command(cls=Verb)
@_posterior
@click.argument("scores", nargs=-1, required=True, metavar="SCORES...", type=options.PATH)
@options.output("posterior")
@_draws("The file to write the next draws to; draws-2.epvi, say, unless told.")
@click.option("--last", is_flag=True, help="Take no further step: confirm or undo the last one only.")
@_accept_missing
@options.as_json
@click.pass_context
def refine(context: click.Context, posterior: Path, scores: tuple[Path, ...], **said: Any) -> None:
    """Improve POSTERIOR by what all sites say of its draws: a step towards the posterior of all rows.

    The SCORES of the next round confirm the step or undo it. When nothing is left to improve it says so, and writes the
    posterior with its certificate and no draws.

    \b
    Examples:
      epvi refine posterior.epvi   scores-*.epvi -o posterior-2.epvi --draws draws-2.epvi
      epvi refine posterior-2.epvi scores-*.epvi -o posterior-3.epvi --last    (what the sites said of draws-2.epvi)
    """
    if said["last"]:
        options.refuse_given(context, "draws", why="--last takes no step that would be asked about")
    from epvi.files import load_only
    from epvi.hub.posterior.posterior import Posterior
    from epvi.hub.refine.refine import refine as refine_once
    from epvi.hub.refine.refine import settle

    before = load_only(posterior, Posterior)
    answers = _loaded(scores)
    target = said["draws"] or check_kind(Path(f"draws-{_rounds(before.step) + 2}.epvi"), "draws")
    with busy("refining"):
        made = (settle if said["last"] else refine_once)(before, answers, accept_missing=said["accept_missing"])
        summary = made.summary()
    path = made.save(said["output"])
    data = {**about_posterior(made, summary), "file": str(path), "draws": None}
    words = [*_what_became(before.step, made.step)]
    if made.step is not None and made.step.before is not None:
        draws = _next_draws(made, answers[0])
        data["draws"] = str(draws.save(target))
        words += _next_round(path, target, draws, made.step)
    else:
        words += [*([] if said["last"] else ["Nothing is left to improve."]), str(trusted(made)), f"\n{summary}"]
        words += [f"\n{made.stands_for}.", f"Wrote {shown(path)} ({size_of(path)})."]
    give(said["as_json"], data, "\n".join(words))


def _rounds(step: "Step | None") -> int:
    return 0 if step is None else step.rounds


def _next_draws(posterior: "Posterior", answer: "Scores") -> "Draws":
    """As many as in the round before, from the same seed: only then are two rounds compared draw by draw."""
    import numpy as np

    return posterior.ask(answer.asked.num_draws, seed=np.asarray(answer.asked.key, np.uint32))


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
        _at_every_site(target, draws),
        f"Then, here:    epvi refine {shown(path)} scores-*.epvi -o {shown(after)}    (--last: no further step)",
    ]
