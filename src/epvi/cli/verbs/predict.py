"""`epvi predict`: a posterior meets rows again."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from epvi.cli import options
from epvi.cli.option_values import ModelOptions, RowOptions
from epvi.cli.output import Verb, busy, give
from epvi.cli.writing import check_apart
from epvi.ground.errors import EpviError
from epvi.ground.printable import shown

if TYPE_CHECKING:
    from epvi.hub.posterior.posterior import Posterior
    from epvi.site.model.model import Model
    from epvi.site.rows.rows import Rows
    from epvi.site.rows.table import Table

_ENDINGS = (".csv", ".parquet", ".npz")
# How many draws, as `epvi.predict` takes by default: a median has a standard error of 4 % of an sd then.
_DRAWS = 1000
# Quantiles in a table of predictions: those of a posterior's summary.
_QUANTILES = (0.05, 0.5, 0.95)


@dataclasses.dataclass(frozen=True)
class SampleOptions:
    """How many draws of the posterior, and of which seed."""

    draws: int
    seed: int


@click.command(cls=Verb)
@options.model_or_study
@click.argument("posterior", type=options.PATH)
@options.rows
@options.gathered(
    "sample",
    SampleOptions,
    click.option(
        "--draws", default=_DRAWS, show_default=True, type=click.IntRange(2), help="How many draws of the posterior."
    ),
    options.seed,
)
@click.option(
    "--given",
    multiple=True,
    metavar="FILE",
    type=click.Path(readable=False),
    help="Rows of known groups, for a model with groups: their effects are drawn given these rows, those of all other"
    " groups from their distribution; repeat for more.",
)
@click.option(
    "-o",
    "--output",
    type=options.PATH,
    help="The file to write: means, sds and quantiles of every row (.csv, .parquet), or all draws (.npz).",
)
def predict(
    model: ModelOptions,
    posterior: Path,
    rows: RowOptions,
    sample: SampleOptions,
    given: tuple[str, ...],
    output: Path | None,
) -> None:
    """Draw predictions for rows from a posterior; rows that have what the model observes are also scored.

    MODEL is the model that the posterior was fitted with, or the study.toml that names it. The score is the log
    predictive density, averaged over rows.

    \b
    Examples:
      epvi predict model.py:logistic posterior.epvi --rows new.csv --x age,chol --y num -o predicted.csv
      epvi predict study.toml posterior.epvi --rows new.csv
      epvi predict study.toml posterior.epvi --rows new.csv --given site3.csv     (a study with groups)
    """
    from epvi.files import load_only
    from epvi.hub.posterior.posterior import Posterior
    from epvi.prediction import predict as predict_rows
    from epvi.site.rows.grouped_table import read_grouped
    from epvi.site.rows.levels import Undeclared

    if output is not None:
        _check_output(output, [*rows.files, *given, str(posterior), model.reference.partition(":")[0]])
    options.refuse_unheeded(model)
    found = load_only(posterior, Posterior)
    made_of = found.fits[0].made_of
    named, described = _model_and_rows(model, rows, made_of.standardised)
    known = _model_and_rows(model, dataclasses.replace(rows, files=given), made_of.standardised)[1] if given else None
    with busy("predicting"):
        draws = predict_rows(named, found, described, given=known, num_samples=sample.draws, seed=sample.seed)
        undeclared = Undeclared(fitted=made_of.levels)
        table = read_grouped(described, named.groups, optional=named.optional, undeclared=undeclared)
        score = _score(named, found, described, known, table, sample)
    data: dict[str, Any] = {"draws": sample.draws, "sites": {name: list(v.shape[1:]) for name, v in draws.items()}}
    words = [f"{name}: {len(v):,} draws of shape {v.shape[1:]}, mean {v.mean():.4g}" for name, v in draws.items()]
    if table.dropped:
        data["dropped"] = table.dropped
        words.append(f"rows left out for a missing value: {table.dropped:,}")
    if score is not None:
        data["log_predictive"] = score
        words.append(f"log predictive density, mean over rows: {score:.6f}")
    if output is not None:
        data["file"] = str(write_predictions(output, draws))
        words.append(f"Wrote {shown(output)}.")
    give(data, "\n".join(words))


def _check_output(path: Path, inputs: list[str]) -> None:
    if path.suffix not in _ENDINGS:
        raise EpviError(f"{path} ends in neither .csv, .parquet nor .npz: name one of these.")
    check_apart(path, inputs)


def _model_and_rows(
    model: ModelOptions, rows: RowOptions, constants: Mapping[str, tuple[float, float]]
) -> "tuple[Model, Rows]":
    """The model, and rows that are standardised as those that were fitted."""
    if model.is_study:
        source, study = rows.source, model.as_study()
        return study.model(), study.rows(source)
    described = rows.as_rows(constants)
    return model.as_model(), described


def _score(
    model: "Model", posterior: "Posterior", rows: "Rows", given: "Rows | None", table: "Table", sample: SampleOptions
) -> float | None:
    """The held-out log likelihood, where the rows have all that the model observes."""
    from epvi.prediction import log_predictive
    from epvi.site.tasks.predictive import row_sites

    full = model.with_groups(1 if table.groups is None else len(table.groups))
    if table.left_out or not row_sites(full.function, full.fixed, table.columns).observed:
        return None
    score = log_predictive(model, posterior, rows, given=given, num_samples=sample.draws, seed=sample.seed)
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
            for q in _QUANTILES:
                made[f"{label} {100 * q:g} %"] = np.quantile(flat[:, :, j], q, axis=0)
    return made
