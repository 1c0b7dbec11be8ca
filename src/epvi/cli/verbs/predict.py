"""The verb in which a posterior meets rows again: `predict`."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from epvi.cli import options
from epvi.cli.output import Verb, busy, give
from epvi.cli.writing import check_apart
from epvi.ground.errors import EpviError
from epvi.ground.printable import shown

if TYPE_CHECKING:
    from epvi.site.rows.table import Table

_ENDINGS = (".csv", ".parquet", ".npz")


@click.command(cls=Verb)
@options.model
@click.argument("posterior", type=options.PATH)
@options.rows
@options.allow_module
@options.fixed
@click.option("--draws", default=1000, show_default=True, type=click.IntRange(2), help="Draws of the posterior.")
@options.seed
@click.option(
    "-o",
    "--output",
    type=options.PATH,
    help="A .csv or .parquet of means, sds and quantiles, or a .npz of draws.",
)
@options.as_json
@click.pass_context
def predict(context: click.Context, model: str, posterior: Path, **said: Any) -> None:
    """Predict rows with a posterior; where the observed column is there, also score them.

    MODEL is the model that the posterior was fitted with, or the study.toml that names it. The score is the mean over
    rows of the log predictive density.

    \b
    Examples:
      epvi predict model.py:logistic posterior.epvi --rows new.csv --x age,chol --y num -o predicted.csv
      epvi predict study.toml posterior.epvi --rows new.csv
    """
    from epvi.files import load_only
    from epvi.hub.posterior.posterior import Posterior
    from epvi.prediction import predict as predict_rows
    from epvi.site.rows.levels import Undeclared
    from epvi.site.rows.rows import read_rows

    if said["output"] is not None:
        _check_output(said["output"], [*said["rows"], str(posterior), model.partition(":")[0]])
    options.is_study(context, model)
    found = load_only(posterior, Posterior)
    made_of = found.fits[0].made_of
    named, rows = _model_and_rows(model, said, made_of.standardised)
    with busy("predicting"):
        draws = predict_rows(named, found, rows, num_samples=said["draws"], seed=said["seed"])
        table = read_rows(rows, optional=named.optional, undeclared=Undeclared(fitted=made_of.levels))
        score = _score(named, found, rows, table, said)
    data: dict[str, Any] = {"draws": said["draws"], "sites": {name: list(v.shape[1:]) for name, v in draws.items()}}
    words = [f"{name}: {len(v):,} draws of shape {v.shape[1:]}, mean {v.mean():.4g}" for name, v in draws.items()]
    if table.dropped:
        data["dropped"] = table.dropped
        words.append(f"rows that lack a value and are left out: {table.dropped:,}")
    if score is not None:
        data["log_predictive"] = score
        words.append(f"log predictive density, mean over rows: {score:.6f}")
    if said["output"] is not None:
        data["file"] = str(write_predictions(said["output"], draws))
        words.append(f"Wrote {shown(said['output'])}.")
    give(said["as_json"], data, "\n".join(words))


def _check_output(path: Path, inputs: list[str]) -> None:
    if path.suffix not in _ENDINGS:
        raise EpviError(f"{path} ends in neither .csv, .parquet nor .npz: name one of these.")
    check_apart(path, inputs)


def _model_and_rows(model: str, said: dict[str, Any], constants: Mapping[str, tuple[float, float]]) -> tuple[Any, Any]:
    """The model, and rows that are standardised as those that were fitted."""
    if model.endswith(".toml"):
        from epvi.study.study import load_study

        source, study = options.make_source(said), load_study(model, allow_module=said["allow_module"])
        return study.model(), study.rows(source)
    rows = options.make_rows(said, constants)
    from epvi.study.references import model_named

    return model_named(model, options.make_fixed(said["fixed"])), rows


def _score(named: Any, posterior: Any, rows: Any, table: "Table", said: dict[str, Any]) -> float | None:
    """The held-out log likelihood, where the rows have all that the model observes."""
    from epvi.prediction import log_predictive
    from epvi.site.tasks.predictive import row_sites

    if table.left_out or not row_sites(named.function, named.fixed, table.columns).observed:
        return None
    score = log_predictive(named, posterior, rows, num_samples=said["draws"], seed=said["seed"])
    if not math.isfinite(score):
        raise EpviError(
            f"the rows' log predictive density is {score}: they have a value that the model cannot give. Mend it, or"
            " leave out the column that the model observes."
        )
    return score


def write_predictions(path: Path, draws: dict[str, Any]) -> Path:
    """A table of rows, or all draws, by the file's ending; whole or not at all."""
    import io

    import numpy as np

    from epvi.ground.atomic import write_whole

    buffer = io.BytesIO()
    if path.suffix == ".npz":
        np.savez(buffer, **draws)
    else:
        import pyarrow
        import pyarrow.csv
        import pyarrow.parquet

        table = pyarrow.table(_columns(draws))
        (pyarrow.csv.write_csv if path.suffix == ".csv" else pyarrow.parquet.write_table)(table, buffer)
    return write_whole(path, buffer.getvalue())


def _columns(draws: dict[str, Any]) -> dict[str, Any]:
    """Mean, sd and quantiles of every number of a row; sites that are not of rows are left to .npz files."""
    import numpy as np

    lengths = [value.shape[1] for value in draws.values() if value.ndim > 1]
    n = max(set(lengths), key=lengths.count) if lengths else 0
    made = {}
    for name, value in draws.items():
        if value.ndim < 2 or value.shape[1] != n:
            continue
        flat = value.reshape(len(value), n, -1).astype(float)
        for j in range(flat.shape[2]):
            label = name if flat.shape[2] == 1 else f"{name}[{j}]"
            made[f"{label} mean"], made[f"{label} sd"] = flat[:, :, j].mean(axis=0), flat[:, :, j].std(axis=0)
            for q in (0.05, 0.5, 0.95):
                made[f"{label} {100 * q:g} %"] = np.quantile(flat[:, :, j], q, axis=0)
    return made
