"""Draws for the sites to score, as text and in JSON: what a site is asked."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from epvi.cli.describe.mixture import component_lines, mixture_json, parameter_lines
from epvi.cli.describe.numerals import numbers_text, range_text
from epvi.cli.describe.provenance import provenance_lines, request_lines
from epvi.cli.output import counted, size_of
from epvi.ground.text_table import lined_up

if TYPE_CHECKING:
    from epvi.wire.request import Draws


def draws_text(file: Path, draws: "Draws") -> str:
    """Everything that is in a file of draws, but not every draw."""
    hessian = "Hessian" if draws.form.whole else "the diagonal of the Hessian"
    wanted = [
        "log p at every draw: the log likelihood of the site's rows, plus its share of the log prior",
        f"gradient and {hessian} of log p at {counted(len(draws.centres), 'centre')}",
    ]
    if len(draws.base):
        wanted.append(
            f"log p at {len(draws.base):,} draws of every Gaussian; its average gradient and Hessian (moments)"
        )
    lines = [
        ("file", f"{file}, {size_of(file)}, draws to score"),
        ("study", draws.made_of.study or "none"),
        *request_lines(draws.asked),
        ("asks for", wanted[0]),
        *(("", more) for more in wanted[1:]),
        *provenance_lines(draws.made_of),
        ("parameters", ""),
        *parameter_lines(draws.space),
        ("shards", f"{len(draws.shares):,}, which are all asked"),
        *(("", f"{share.label}, number {share.shard}: {share.prior} of the prior") for share in draws.shares),
        ("draws", f"{len(draws.theta):,}, unconstrained; their mean ± sd, and range:"),
        *_spread(draws.theta, draws),
        *(("centre", f"{i + 1}: {numbers_text(tuple(centre))}") for i, centre in enumerate(draws.centres)),
        ("base draws", range_text(draws.base.ravel()) if len(draws.base) else "none"),
        ("Gaussians", f"{draws.gaussians.num_components}"),
        *component_lines(draws.gaussians, draws.space),
    ]
    ending = (
        "That is all; epvi show --json prints every draw. They are draws of the posterior, which was made of the sites'"
        " files and of no rows."
    )
    return f"{lined_up(lines, left=(0, 1))}\n\n{ending}"


def draws_json(draws: "Draws") -> dict[str, Any]:
    """The same in JSON, with every draw."""
    from epvi.wire.request import pack_draws

    record = pack_draws(draws).record
    arrays = {"theta": draws.theta, "centres": draws.centres, "base": draws.base}
    listed = {name: array.tolist() for name, array in arrays.items()}
    return {"kind": "draws", **record, **listed, "gaussians": mixture_json(draws.gaussians, draws.space)}


def _spread(theta: np.ndarray, draws: "Draws") -> list[tuple[str, str]]:
    lines = []
    for i, column in enumerate(theta.T):
        text = f"{np.mean(column):.6g} ± {np.std(column):.3g}, {np.min(column):.6g} to {np.max(column):.6g}"
        lines.append(("", f"  {draws.space.coordinate(i)}: {text}"))
    return lines
