"""A site's scores, as text and in JSON: what a site answers."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from epvi.cli.describe.numerals import LARGEST_MATRIX, numbers_text, range_text
from epvi.cli.describe.provenance import provenance_lines, request_lines
from epvi.cli.output import size_of
from epvi.ground.text_table import lined_up

if TYPE_CHECKING:
    from epvi.wire.answer import Scores


def scores_text(file: Path, scores: "Scores") -> str:
    """Everything that is in a file of scores, but not every score."""
    kind = "scores" if scores.moments is None else "scores and moments"
    exact = "exact: the log likelihood of every row"
    lines = [
        ("file", f"{file}, {size_of(file)}, a site's {kind}"),
        ("study", scores.made_of.study or "none"),
        ("shard", f"{scores.label}, number {scores.shard} of {scores.num_shards}"),
        ("stands for", f"{scores.num_rows:,} rows, and {scores.prior} of the prior"),
        *request_lines(scores.asked),
        ("cost", f"{scores.passes} passes over all rows, {scores.seconds:.3g} s in all"),
        *provenance_lines(scores.made_of),
        ("prior", "proper" if scores.proper else "improper: there is no evidence"),
        ("scores", f"log likelihood plus share of the log prior, at every draw: {range_text(scores.values)}"),
        ("", exact if scores.exact else f"with standard errors: {range_text(scores.errors)}"),
        ("last draw", f"{numbers_text(tuple(scores.echo))}, by which the centre knows its draws again"),
    ]
    for i, (value, gradient, hessian) in enumerate(zip(*scores.centres, strict=True)):
        lines += [(f"at centre {i + 1}", f"log p {value:.10g}"), *_derivatives(gradient, hessian)]
    lines += [("rows", "at the first centre, sums over rows of the gradients of their log likelihoods:")]
    lines += _derivatives(scores.rows.gradient, scores.rows.products, "products of each gradient with itself")
    if scores.moments is not None:
        for i, (values, gradient, hessian) in enumerate(zip(*scores.moments, strict=True)):
            lines += [(f"Gaussian {i + 1}", f"log p at its draws: {range_text(values)}; averages over them:")]
            lines += _derivatives(gradient, hessian)
    ending = (
        f"That is all: {scores.num_numbers:,} numbers (epvi show --json prints every one), and the text above. No row"
        " and no value of a column is in it, but each score is a sum over the site's rows, and so are the gradients and"
        " Hessians of log likelihoods at and around the posterior. A gradient gives as many equations about the rows as"
        " there are parameters, a Hessian half the square of that; docs/multi-site.md says what that can tell."
    )
    return f"{lined_up(lines, left=(0, 1))}\n\n{ending}"


def scores_json(scores: "Scores") -> dict[str, Any]:
    """The same in JSON, every number as it is in the file."""
    from epvi.wire.answer import pack_scores

    content = pack_scores(scores)
    return {"kind": content.kind, **content.record, **{name: x.tolist() for name, x in content.arrays.items()}}


def _derivatives(gradient: np.ndarray, hessian: np.ndarray, called: str = "Hessian") -> list[tuple[str, str]]:
    from epvi.gaussian.structures import form_of

    lines = [("", f"  gradient {numbers_text(tuple(gradient))}")]
    if not form_of(hessian).whole:
        return [*lines, ("", f"  {called}, diagonal: {numbers_text(tuple(hessian))}")]
    if len(hessian) > LARGEST_MATRIX:
        d = len(hessian)
        return [*lines, ("", f"  and the {d * (d + 1) // 2:,} numbers of the {called} (epvi show --json prints them)")]
    lines += [("", f"  {called}, row {i + 1}: {numbers_text(tuple(row[: i + 1]))}") for i, row in enumerate(hessian)]
    return lines
