"""`epvi demo`: a study of simulated sites, to see how it works."""

import io
import tempfile
from pathlib import Path
from typing import Any

import click

from epvi.cli import options
from epvi.cli.output import Results, Verb, give, results
from epvi.ground.printable import shown

# Sites as in the examples of all help texts; so few rows of each, and columns, that all fits take seconds.
_SITES, _ROWS, _COLUMNS = 6, 1000, 4


@click.command(cls=Verb)
@click.option(
    "--into",
    type=options.PATH,
    help="Keep the simulated tables and all files in this folder; if left out, they are removed.",
)
@options.seed
@click.pass_context
def demo(context: click.Context, into: Path | None, seed: int) -> None:
    """Simulate six sites, fit each on its own and combine the fits, with the commands of a study.

    \b
    Example:
      epvi demo --into demo/
    """
    from epvi.cli.verbs.combine import combine
    from epvi.cli.verbs.shard import shard

    with tempfile.TemporaryDirectory() as temporary:
        folder = into or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        truth = _simulate(folder, seed)
        columns = ",".join(f"x{i}" for i in range(_COLUMNS))
        files = [str(folder / f"site-{m}.epvi") for m in range(1, _SITES + 1)]
        for m, file in enumerate(files, start=1):
            arguments = ["logistic", "--rows", str(folder / f"site-{m}.csv"), "--x", columns, "--y", "y"]
            _run(context, shard, [*arguments, "--shard", f"{m}/{_SITES}", "-o", file])
        _run(context, combine, [*files, "--check", "-o", str(folder / "posterior.epvi")])
        _tell(folder, truth)


def _run(context: click.Context, verb: click.Command, arguments: list[str]) -> None:
    """Print the command as a user would write it, and run it; with --json nothing of it is printed."""
    shown_in = Results(io.StringIO() if results().as_json else results().file, as_json=False)
    click.secho(f"\n$ epvi {verb.name} {shown(' '.join(arguments))}", file=shown_in.file, bold=True)
    verb.main(arguments, standalone_mode=False, parent=context, obj=shown_in)


def _simulate(folder: Path, seed: int) -> dict[str, Any]:
    """Write a table for every site; gives the coefficients that they were simulated with."""
    import numpy as np

    from epvi.ground.atomic import write_whole
    from epvi.models import simulate_logistic

    rows, truth = simulate_logistic(_SITES * _ROWS, _COLUMNS, seed=seed)
    table = np.column_stack([rows["x"], rows["y"]])
    header = ",".join([*(f"x{i}" for i in range(_COLUMNS)), "y"])
    for m, part in enumerate(np.array_split(table, _SITES), start=1):
        text = io.BytesIO()
        np.savetxt(text, part, "%.17g", ",", header=header, comments="")
        write_whole(folder / f"site-{m}.csv", text.getvalue())
    return truth


def _tell(folder: Path, truth: dict[str, Any]) -> None:
    from epvi.files import load_only
    from epvi.hub.posterior.posterior import Posterior

    posterior = load_only(folder / "posterior.epvi", Posterior)
    summary = posterior.summary()
    weights = {f"w[{i}]": float(weight) for i, weight in enumerate(truth["w"])}
    found = {name: summary[name] for name in weights}
    lines = [
        f"  {n}: {found[n]['mean']:.3f} ± {found[n]['sd']:.3f}, simulated with {w:.3f}" for n, w in weights.items()
    ]
    words = "\n".join(["\nNo command saw the rows of two sites. The posterior, and what was simulated:", *lines])
    give({"found": found, "made_with": weights, "stands_for": posterior.stands_for}, words)
