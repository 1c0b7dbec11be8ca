"""Everything that is in the files of later rounds, in words: what a site is asked, and what it answers."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from epvi.cli.describe.shard_fit import (
    component_lines,
    made_of_lines,
    numbers,
    parameter_lines,
    said_numbers,
    said_seed,
)
from epvi.cli.output import counted, size_of
from epvi.ground.text_table import lined_up

if TYPE_CHECKING:
    from epvi.wire.answer import Scores
    from epvi.wire.request import Asked, Draws

# Up to so many parameters whole Hessians are printed.
_MOST_PRINTED = 30


def of_draws(file: Path, draws: "Draws") -> str:
    """What the centre asks."""
    centres = "the centre" if len(draws.centres) == 1 else f"the {len(draws.centres)} centres"
    wanted = [
        f"log p of its rows and its share of the prior at every draw; its derivatives, up to second, at {centres}"
    ]
    if len(draws.base):
        wanted.append(f"log p at {len(draws.base):,} draws of every Gaussian, its derivatives on average (moments)")
    lines = [
        ("file", f"{file}, {size_of(file)}, draws to score"),
        ("study", draws.made_of.study or "none"),
        *_asked(draws.asked),
        ("asks for", wanted[0]),
        *(("", more) for more in wanted[1:]),
        *made_of_lines(draws.made_of),
        ("parameters", ""),
        *parameter_lines(draws.space),
        ("asks", counted(len(draws.shares), "shard")),
        *(("", f"{share.label}, number {share.shard}: {share.prior} of the prior") for share in draws.shares),
        ("draws", f"{len(draws.theta):,}, unconstrained; their mean ± sd, least and greatest:"),
        *_spread(draws.theta, draws),
        *(("centre", f"{i + 1}: {said_numbers(tuple(centre))}") for i, centre in enumerate(draws.centres)),
        ("base draws", _told(draws.base.ravel()) if len(draws.base) else "none"),
        ("Gaussians", f"{draws.gaussians.num_components}"),
        *component_lines(draws.gaussians, draws.space),
    ]
    ending = (
        "That is all; epvi show --json prints every draw. They come from the posterior: from the sites' files, and"
        " from no rows."
    )
    return f"{lined_up(lines, left=(0, 1))}\n\n{ending}"


def of_scores(file: Path, scores: "Scores") -> str:
    """What a site answers."""
    kind = "scores" if scores.moments is None else "scores and moments"
    lines = [
        ("file", f"{file}, {size_of(file)}, a site's {kind}"),
        ("study", scores.made_of.study or "none"),
        ("shard", f"{scores.label}, number {scores.shard} of {scores.num_shards}"),
        ("stands for", f"{scores.num_rows:,} rows, and {scores.prior} of the prior"),
        *_asked(scores.asked),
        ("effort", f"{scores.passes} passes over all rows, all in all {scores.seconds:.3g} s"),
        *made_of_lines(scores.made_of),
        ("prior", "a density" if scores.proper else "not a density: there is no evidence"),
        ("scores", f"log p of the rows and the share of the prior at every draw: {_told(scores.values)}"),
        ("", "of every row" if scores.exact else f"with standard errors: {_told(scores.errors)}"),
        ("last draw", said_numbers(tuple(scores.echo))),
    ]
    for i, (value, gradient, hessian) in enumerate(zip(*scores.centres, strict=True)):
        lines += [(f"at centre {i + 1}", f"log p {value:.10g}"), *_derivatives(gradient, hessian)]
    lines += [("rows", "sums over the rows, at the first centre, of their log likelihoods' gradients:")]
    lines += _derivatives(scores.rows.gradient, scores.rows.products, "products of two gradients")
    if scores.moments is not None:
        for i, (values, gradient, hessian) in enumerate(zip(*scores.moments, strict=True)):
            lines += [(f"Gaussian {i + 1}", f"log p at its draws: {_told(values)}; on average:")]
            lines += _derivatives(gradient, hessian)
    ending = (
        f"That is all: {scores.num_numbers:,} numbers (epvi show --json prints every one), and the text above. No row"
        " and no value of a column is in it, but every number is a sum over the site's rows: log likelihoods, gradients"
        " and Hessians at and around the posterior. A gradient has as many equations about the rows as there are"
        " parameters, a Hessian half their square; docs/multi-site.md says what that can tell."
    )
    return f"{lined_up(lines, left=(0, 1))}\n\n{ending}"


def draws_json(draws: "Draws") -> dict[str, Any]:
    """The same in JSON, every number."""
    from epvi.wire.request import pack_draws

    record = pack_draws(draws).record
    arrays = {"theta": draws.theta, "centres": draws.centres, "base": draws.base}
    listed = {name: array.tolist() for name, array in arrays.items()}
    return {"kind": "draws", **record, **listed, "gaussians": numbers(draws.gaussians, draws.space)}


def scores_json(scores: "Scores") -> dict[str, Any]:
    """The same in JSON, every number as it is in the file."""
    from epvi.wire.answer import pack_scores

    content = pack_scores(scores)
    return {"kind": content.kind, **content.record, **{name: x.tolist() for name, x in content.arrays.items()}}


def _asked(asked: "Asked") -> list[tuple[str, str]]:
    base = f", {asked.num_base:,} base draws" if asked.num_base else ""
    said = f"{asked.num_draws:,} draws{base} with seed {said_seed(asked.key)}, of the posterior {asked.posterior}"
    return [("request", said)]


def _spread(theta: np.ndarray, draws: "Draws") -> list[tuple[str, str]]:
    lines = []
    for i, column in enumerate(theta.T):
        said = f"{np.mean(column):.6g} ± {np.std(column):.3g}, {np.min(column):.6g} to {np.max(column):.6g}"
        lines.append(("", f"  {draws.space.coordinate(i)}: {said}"))
    return lines


def _told(values: np.ndarray) -> str:
    """How many numbers, and where they are."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return f"{len(values):,} numbers, all impossible"
    rest = len(values) - len(finite)
    more = f", {rest:,} of them impossible" if rest else ""
    return f"{len(values):,} numbers from {np.min(finite):.6g} to {np.max(finite):.6g}{more}"


def _derivatives(gradient: np.ndarray, hessian: np.ndarray, called: str = "Hessian") -> list[tuple[str, str]]:
    lines = [("", f"  gradient {said_numbers(tuple(gradient))}")]
    if hessian.ndim == 1:
        return [*lines, ("", f"  {called}, diagonal: {said_numbers(tuple(hessian))}")]
    if len(hessian) > _MOST_PRINTED:
        d = len(hessian)
        return [*lines, ("", f"  and the {d * (d + 1) // 2:,} numbers of the {called} (epvi show --json prints them)")]
    lines += [("", f"  {called}, row {i + 1}: {said_numbers(tuple(row[: i + 1]))}") for i, row in enumerate(hessian)]
    return lines
