"""Fits one shard: from a model and rows to a `ShardFit`, which can be sent to the hub."""

import dataclasses
import re
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from epvi.engines.kept_programs import kept_programs
from epvi.ground.compiled import compiled
from epvi.ground.errors import EpviError
from epvi.ground.log import logger
from epvi.ground.seeds import Seed, SeedStream, as_key
from epvi.ground.verb import verb
from epvi.site.derivatives.passes import Programs
from epvi.site.derivatives.subposterior import Report, Subposterior, block_size
from epvi.site.derivatives.subposteriors import Subposteriors
from epvi.site.derivatives.windows import Windows
from epvi.site.fit.inference import Inference, LocalFit
from epvi.site.fit.nvi import NVI
from epvi.site.model.model import Model
from epvi.site.rows.columns import Columns, length
from epvi.site.rows.grouped_table import read_grouped
from epvi.site.rows.rows import with_constants
from epvi.site.rows.table import Table
from epvi.site.tasks.fingerprint import hash_each, hash_rows
from epvi.site.tasks.prepared import prepared
from epvi.wire.shard_fit import Part, Provenance, ShardFit, informs

ONE_SITE = "they must be the same at every site, and epvi stats and epvi pool give them."


@verb("fitting the shard")
def fit_shard(
    model: Any,
    rows: Any,
    shard: str,
    *,
    prior: Fraction | str | float | int | None = None,
    inference: Inference | None = None,
    seed: Seed = 0,
) -> ShardFit:
    """Fit shard "3/6", the third of six, with a sixth of the prior unless `prior` gives another share.

    All shards of one posterior need the same model, inference and seed, and their shares of the prior sum to 1.
    """
    model, inference = as_model(model), as_inference(inference)
    index, num_shards = parse_shard(shard)
    part = Part(index, num_shards, f"{index} of {num_shards}", as_share(prior, num_shards))
    return fit_table(model, read_grouped(with_constants(rows, ONE_SITE), model.groups), part, inference, seed)


@verb("fitting the shard")
@kept_programs()
def fit_table(model: Model, table: Table, part: Part, inference: Inference, seed: Seed) -> ShardFit:
    """Fit a table of rows that has been read."""
    programs, columns, made_of = prepared(model, table)
    plan = FitPlan(
        inference,
        block_size(programs, columns, length(columns), inference.points_at_once),
        np.asarray(jax.random.key_data(as_key(seed))),
        made_of,
        table.hash_key,
        programs.target.bundle,
    )
    made = fit_columns(programs, columns, part, plan)
    if table.groups is not None:
        # The hash of the rows themselves, whose order does not matter, and not of bundles of groups.
        made_of = dataclasses.replace(made.made_of, rows=hash_rows(table.columns, table.hash_key))
        made = dataclasses.replace(made, made_of=made_of)
    logger.info("%s", made.account)
    return made


@dataclasses.dataclass(frozen=True, eq=False)
class FitPlan:
    """What all shards of one posterior have in common."""

    # The local inference with its settings.
    inference: Inference
    # Rows per block of a pass.
    rows_per_block: int
    # The words of the seed's random key.
    key: np.ndarray
    # Fingerprint of the model and coding of the columns.
    made_of: Provenance
    # Key of the hash of the rows.
    hash_key: str = ""
    # How many of the user's rows one row has places for (see `Target`).
    bundle: int = 1

    def keys(self, parts: Sequence[Part]) -> tuple[jax.Array, jax.Array]:
        """The random key that all shards share, and those of some shards."""
        key = jax.random.wrap_key_data(jnp.asarray(self.key))
        return _keys(key, np.array([part.shard for part in parts], np.uint32))

    def provenance(self) -> Provenance:
        """The provenance of a fit by this plan, without the hash of its rows."""
        key = tuple(int(word) for word in self.key)
        return dataclasses.replace(self.made_of, inference=settings_of(self.inference), key=key)


@compiled
def _keys(key: Any, shards: Any) -> tuple[jax.Array, jax.Array]:
    return jax.random.fold_in(key, SeedStream.COMMON), jax.vmap(jax.random.fold_in, (None, 0))(key, shards)


def settings_of(settings: Any) -> dict[str, Any]:
    """The fields of a settings object as plain values, with the name of its class."""
    named = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    plain = {name: value if _is_plain(value) else type(value).__name__ for name, value in named.items()}
    return {"name": type(settings).__name__, **plain}


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def fit_columns(
    programs: Programs,
    columns: Columns,
    part: Part,
    plan: FitPlan,
    report: Report = lambda passes: None,
    *,
    tried: bool = False,
) -> ShardFit:
    """Fit checked columns with compiled programs; `report` is called with the number of passes so far.

    `tried` says that the shard is known to be irregular, see `fit_regular`.
    """
    start = time.perf_counter()
    subposterior = Subposterior.of(programs, columns, part.prior, plan.rows_per_block, report)
    subposterior.refuse_outside()
    together = None if tried else fit_regular(programs, columns, [part], [subposterior.num_rows], plan)[0]
    if together is not None:
        return together
    inference = plan.inference.settled(programs.target.space.dim, part.num_shards)
    common, (key,) = plan.keys([part])
    made = inference.fit(subposterior.bounded(), columns, common=common, key=key)
    made_of = dataclasses.replace(plan.provenance(), rows=hash_rows(columns, plan.hash_key))
    return _shard_fit(programs, columns, part, made_of, made, time.perf_counter() - start)


def fit_regular(
    programs: Programs,
    columns: Columns,
    parts: Sequence[Part],
    sizes: Sequence[int],
    plan: FitPlan,
    report: Callable[[np.ndarray, np.ndarray], None] = lambda shards, passes: None,
) -> list[ShardFit | None]:
    """Fit shards together whose checked rows lie one after the other; None for each that is to be fitted alone."""
    start = time.perf_counter()
    shares = np.array([float(part.prior) for part in parts])
    if np.any(shares == 0) or not plan.inference.fits_together:
        return [None] * len(parts)
    window = block_size(programs, columns, sum(sizes), 1)
    windows = Windows.of(np.array(sizes), window, max(sizes), programs.target.bundle)
    subposteriors = Subposteriors(programs, columns, windows, shares, np.ones(len(parts)), report=report)
    inference = plan.inference.settled(subposteriors.dim, parts[0].num_shards)
    common, keys = plan.keys(parts)
    made = inference.fit_together(subposteriors, common=common, keys=keys)
    if all(fit is None for fit in made):
        return [None] * len(parts)
    made_of, hashes = plan.provenance(), hash_each(columns, sizes, plan.hash_key)
    seconds = (time.perf_counter() - start) / sum(sizes)
    fits: list[ShardFit | None] = []
    for part, fit, begin, size, rows in zip(parts, made, windows.bounds[:-1], sizes, hashes, strict=True):
        own = {name: column[begin : begin + size] for name, column in columns.items()}
        known = dataclasses.replace(made_of, rows=rows)
        fits.append(None if fit is None else _shard_fit(programs, own, part, known, fit, seconds * size))
    return fits


def _shard_fit(
    programs: Programs, columns: Columns, part: Part, made_of: Provenance, made: LocalFit, seconds: float
) -> ShardFit:
    # A single shard has no others that could bound what it does not.
    told = made.information if part.num_shards > 1 else None
    return ShardFit(
        mixture=made.mixture,
        space=programs.target.space,
        shard=part.shard,
        num_shards=part.num_shards,
        label=part.label,
        prior=part.prior,
        num_rows=programs.target.num_rows(columns),
        status=made.status if told is None else informs(told.finding),
        history=made.history,
        elbo=made.elbo,
        gap=made.gap,
        passes=made.passes,
        pass_seconds=made.pass_seconds,
        made_of=made_of,
        seconds=seconds,
        point=None if told is None else told.point,
    )


@verb("the subposterior")
def subposterior(model: Any, rows: Any, shard: str, *, prior: Any = None) -> Subposterior:
    """The subposterior p(θ)^f p(rows|θ) of one shard, for your own samplers and inferences.

    `shard` and `prior` are as in `fit_shard`. Its `log_density` is a pure JAX function of one θ; `value`, `gradient`
    and `full` take K points and pass over the rows in blocks.
    """
    model = as_model(model)
    _, num_shards = parse_shard(shard)
    table = read_grouped(with_constants(rows, ONE_SITE), model.groups)
    programs, columns, _ = prepared(model, table, labels=False)
    size = block_size(programs, columns, length(columns), 1)
    made = Subposterior.of(programs, columns, as_share(prior, num_shards), size)
    made.refuse_outside()
    return made.bounded()


def as_model(model: Any) -> Model:
    """The model itself, or a `Model` of a plain NumPyro function."""
    return model if isinstance(model, Model) else Model(model)


def as_inference(inference: Any) -> Inference:
    """The local inference, by default NVI."""
    if inference is None:
        return NVI()
    if not isinstance(inference, Inference):
        raise EpviError(f"inference is {inference!r}: pass for example epvi.NVI(num_components=4), with its brackets.")
    return inference


def parse_shard(shard: Any) -> tuple[int, int]:
    """The number of the shard and the number of shards, from "3/6"."""
    found = re.fullmatch(r"\s*(\d+)\s*/\s*(\d+)\s*", shard) if isinstance(shard, str) else None
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise EpviError(f'shard is {shard!r}: write "3/6" for the third of six shards.')
    return int(found[1]), int(found[2])


def as_share(prior: Any, num_shards: int) -> Fraction:
    """The share of the prior as an exact fraction, by default 1/M."""
    if prior is None:
        return Fraction(1, num_shards)
    try:
        # The nearest fraction with a denominator up to a million: 0.1 means a tenth, not the nearest binary number.
        share = Fraction(prior).limit_denominator(10**6) if isinstance(prior, float) else Fraction(prior)
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        share = Fraction(-1)
    if not 0 <= share <= 1:
        raise EpviError(f'prior is {prior!r}: pass the share of the prior as a fraction, such as "1/6".')
    return share
