"""Check that shard fits can be combined, and refuse them with a remedy if not.

Takes fits sorted by shard. They must come from different shards and rows, from one model with the same fixed arguments
and the same columns, coded and standardised alike, and their shares of the prior must sum to 1.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from epvi.ground.errors import EpviError
from epvi.ground.printable import shown
from epvi.wire.answer import Scores
from epvi.wire.shard_fit import Provenance, ShardFit, plain_coding

# Characters of a hash of rows as epvi writes it, of which the first four identify the hash key.
_HASH_DIGITS, _KEY_DIGITS = 36, 4
# Relative differences up to which two sites' log prior, and log likelihood, at fixed points come from the same model:
# priors are always computed in float64, likelihoods perhaps in float32. Judgement: well above the rounding of either.
_SAME_PRIOR, _SAME_ROWS = 1e-8, 1e-3


class Known:
    """Pairs of models that have been compared and agree, by the identity of what is compared.

    Fits of one batch share these objects. They are kept here, so that no other object gets the identity of one of them.
    """

    def __init__(self) -> None:
        self._pairs: dict[tuple[int, ...], tuple[Any, ...]] = {}

    def has(self, pair: tuple[Any, ...]) -> bool:
        """Whether these very objects have been compared."""
        return tuple(map(id, pair)) in self._pairs

    def add(self, pair: tuple[Any, ...]) -> None:
        """Remember that they agree."""
        self._pairs[tuple(map(id, pair))] = pair


def check_belonging(fits: Sequence[ShardFit], *, accept_unconverged: bool) -> None:
    """Refuse fits that cannot be combined into one posterior."""
    _check_twice(fits)
    known = Known()
    for fit in fits[1:]:
        _check_pair(fits[0], fit, known)
    _check_shares(fits)
    if not accept_unconverged:
        _check_statuses(fits)


def missing_shards(fits: Iterable[ShardFit]) -> list[int]:
    """The numbers of the shards without a fit, or with only a stand-in (a fit without rows)."""
    fits = list(fits)
    present = {fit.shard for fit in fits if not fit.is_stand_in}
    return [shard for shard in range(1, fits[0].num_shards + 1) if shard not in present]


def numbered(shards: Sequence[int]) -> str:
    """The first ten numbers as text, for a message."""
    return ", ".join(map(str, shards[:10])) + (", ..." if len(shards) > 10 else "")


def _check_twice(fits: Sequence[ShardFit]) -> None:
    sizes = {fit.num_shards: fit for fit in fits}
    if len(sizes) > 1:
        (m, one), (n, other), *_ = sizes.items()
        raise EpviError(
            f"{one.called} is one of {m} shards and {other.called} one of {n}: fit all with the same number of shards."
        )
    for one, other in itertools.pairwise(fits):
        if one.shard == other.shard:
            again = one.made_of.rows and one.made_of.rows == other.made_of.rows
            why = "and its rows would count twice" if again else "with other rows, so one has the wrong number"
            raise EpviError(
                f"{one.called} is there twice{_in(other)}, {why}: leave one out, or fit it with its number."
            )
    hashed = [fit for fit in fits if len(fit.made_of.rows) == _HASH_DIGITS]
    for fit in hashed[1:]:
        if fit.made_of.rows[:_KEY_DIGITS] != hashed[0].made_of.rows[:_KEY_DIGITS]:
            raise EpviError(
                f"{hashed[0].called} and {fit.called} were made with different keys for the hash of their rows, so that"
                " rows that count twice cannot be found: fit both with one hash_key."
            )
    seen: dict[str, ShardFit] = {}
    for fit in fits:
        if fit.made_of.rows and fit.made_of.rows in seen:
            other = seen[fit.made_of.rows]
            raise EpviError(
                f"{other.called} and {fit.called} were fitted to the same rows, which would count twice:"
                " leave one out, and let the other carry its share of the prior."
            )
        seen[fit.made_of.rows] = fit


def _in(other: ShardFit) -> str:
    return f" (also in {shown(other.file)})" if other.file else ""


def _check_pair(first: ShardFit, fit: ShardFit, known: Known) -> None:
    (theirs, their_groups), (ours, our_groups) = fit.space.signature(), first.space.signature()
    if theirs == ours and their_groups != our_groups:
        raise EpviError(
            f"{fit.called} has {_groups(fit)} as exchangeable and {first.called} has {_groups(first)}: fit all shards"
            " with one model, and declare in it what is exchangeable (exchangeable=[...] in epvi.Model)."
        )
    if theirs != ours:
        raise EpviError(
            f"{fit.called} has the parameters ({fit.space.describe()}) and {first.called} has"
            f" ({first.space.describe()}): fit all shards with one model, in which the parameters have one order."
        )
    check_same_model(first, fit, known)


def _groups(fit: ShardFit) -> str:
    return "; ".join(", ".join(group) for group in fit.space.exchangeable) or "nothing"


def check_same_model(first: ShardFit | Scores, fit: ShardFit | Scores, known: Known) -> None:
    """Refuse fits or scores of different models, or of rows that were coded differently.

    `known` are pairs that have been compared, to which this one is added: fits of one batch share what is compared.
    """
    a, b = first.made_of, fit.made_of
    pair = (*_compared(a), *_compared(b))
    if known.has(pair):
        return
    _check_models(first, fit)
    known.add(pair)


def _check_models(first: ShardFit | Scores, fit: ShardFit | Scores) -> None:
    a, b = first.made_of, fit.made_of
    if _compared(a) == _compared(b):
        return
    said = f"{fit.called} and {first.called}"
    if a.groups != b.groups:
        raise EpviError(
            f"{said} integrated out the effects of different groups ({b.groups or 'none'}; {a.groups or 'none'}): name"
            " the same column at every site, as in epvi.Model(..., groups=...)."
        )
    name = _first_difference(a.fixed, b.fixed)
    if name is not None:
        raise EpviError(f"{said} have different values of the fixed argument {name!r}: fit all shards with the same.")
    (a_columns, a_levels), (b_columns, b_levels) = (plain_coding(one.columns, one.levels) for one in (a, b))
    name = _first_difference(a_columns, b_columns) if a_columns and b_columns else None
    if name is not None:
        raise EpviError(
            f"{said} have other columns behind {name!r} ({_listed(b.columns, name)}; {_listed(a.columns, name)}):"
            " take the same ones, in one order."
        )
    name = _first_difference(a_levels, b_levels)
    if name is not None:
        raise EpviError(f"{said} have other levels of column {name!r}: give the same levels, in one order.")
    name = _first_difference(a.standardised, b.standardised)
    if name is not None:
        raise EpviError(
            f"{said} standardise column {name!r} with different constants ({b.standardised.get(name, 'none')};"
            f" {a.standardised.get(name, 'none')}): take the same at every site (epvi pool gives them)."
        )
    prior = _agree(a.prior_values, b.prior_values, _SAME_PRIOR)
    if not prior or not _agree(a.row_values, b.row_values, _SAME_ROWS):
        part = "prior" if not prior else "likelihood"
        raise EpviError(
            f"{said} come from different models ({b.model} and {a.model}, whose {part} differs): fit both with one and"
            " the same model file."
        )


def _compared(made_of: Provenance) -> tuple[Any, ...]:
    """All that is compared; NaN equals nothing, so that unequal ones may still agree."""
    coding = made_of.fixed, made_of.columns, made_of.levels, made_of.standardised
    return *coding, made_of.groups, made_of.prior_values, made_of.row_values


def _first_difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> str | None:
    return next((name for name in sorted({*a, *b}) if a.get(name) != b.get(name)), None)


def _listed(columns: Mapping[str, tuple[str, ...]], name: str) -> str:
    listed = columns.get(name, ())
    return ", ".join(listed[:6]) + (", ..." if len(listed) > 6 else "") or "none"


def _agree(a: Sequence[float], b: Sequence[float], tolerance: float) -> bool:
    """Whether values of two models are equal up to the tolerance; missing values and NaN agree with anything."""
    if not a or not b:
        return True
    if len(a) != len(b):
        return False
    return all(math.isnan(x - y) or abs(x - y) <= tolerance * (1 + abs(x)) for x, y in zip(a, b, strict=True))


def _check_shares(fits: Sequence[ShardFit]) -> None:
    if fits[0].made_of.flat_prior:
        return
    total = sum((fit.prior for fit in fits), Fraction(0))
    size = fits[0].num_shards
    if total > 1:
        most = max(fits, key=lambda fit: fit.prior)
        raise EpviError(
            f"the shards' shares of the prior sum to {_over(total, size)}, more than 1: {most.called} carries"
            f" {_over(most.prior, size)}. A shard whose share another one carries is fitted with --prior 0 (prior=0)."
        )
    if total < 1:
        missing = missing_shards(fits)
        carrier = max((fit for fit in fits if not fit.is_stand_in), key=lambda fit: fit.num_rows, default=fits[0])
        share = _over(carrier.prior + 1 - total, size)
        command = f"as in: epvi shard ... --shard {carrier.shard}/{size} --prior {share}"
        said = f"the shards' shares of the prior sum to {_over(total, size)}, not to 1"
        if not missing:
            raise EpviError(f"{said}: fit one again with what is missing as well, {command}.")
        raise EpviError(
            f"{said} (missing: {numbered(missing)}): add the missing shards, or fit a present one again with their"
            f" share as well, {command} (or, when the prior is nearly Gaussian, fit a missing one with --no-rows)."
        )


def _over(share: Fraction, size: int) -> str:
    """A share as a multiple of 1/size where it is one, not reduced: 2/8, not 1/4."""
    parts = share * size
    return f"{parts}/{size}" if parts.denominator == 1 else str(share)


def _check_statuses(fits: Sequence[ShardFit]) -> None:
    for fit in fits:
        if not fit.can_be_multiplied:
            raise EpviError(
                f"{fit.called} did not end well: {fit.status} (--accept-unconverged, accept_unconverged=True, takes it"
                " nevertheless)"
            )
