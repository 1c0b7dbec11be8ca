"""Write a posterior to a file and read it: its mixture, and its shards' fits, so that late shards can be added.

The certificate and the state of its refinement are written by `file_rounds.py`.
"""

import dataclasses
from typing import Any

import numpy as np

from epvi.gaussian.mixture import Estimate
from epvi.ground.errors import EpviError
from epvi.ground.version import __version__
from epvi.hub.posterior.file_effects import pack_effects, read_effects
from epvi.hub.posterior.file_rounds import pack_rounds, read_rounds
from epvi.hub.posterior.parts import Choices, Parts
from epvi.hub.product.known import PRODUCTS
from epvi.hub.product.result import Product, ProductMixture
from epvi.wire.codec import (
    describe_space,
    describe_status,
    dimension,
    mixture_arrays,
    read_mixture,
    read_space,
    read_status,
)
from epvi.wire.envelope import Envelope, Malformed
from epvi.wire.record import Record, as_number, finite_or_none, number_or_nan
from epvi.wire.shard_fit import describe_fit, fit_arrays, read_fit

# Shard fits that one file may hold, checked before any is read. Judgement.
_MOST_FITS = 100_000
# The largest setting of a product method, such as its number of samples: adding a shard to a posterior from a file runs
# the method with the settings in the file. Judgement.
_MOST_SAMPLES = 10**8


def pack_parts(parts: Parts) -> Envelope:
    """The envelope of a posterior."""
    made = parts.product
    arrays = mixture_arrays(made.mixture)
    for i, fit in enumerate(parts.fits):
        arrays |= fit_arrays(fit, f"{i}/")
    rounds, more = pack_rounds(parts)
    effects, of_effects = pack_effects(parts.space, parts.effects)
    shared = parts.space if parts.effects is None else parts.effects.product_space(parts.space)
    record = {
        "space": describe_space(shared),
        "structure": made.mixture.structure.name,
        "status": describe_status(made.status),
        "log_normaliser": None if made.log_normaliser is None else [finite_or_none(x) for x in made.log_normaliser],
        "product": None if parts.choices.product is None else _describe_way(parts.choices.product),
        "key": list(parts.choices.key),
        "fits": [describe_fit(fit) for fit in parts.fits],
        **rounds,
        **effects,
        "version": __version__,
    }
    return Envelope("posterior", record, arrays | more | of_effects)


def unpack_parts(content: Envelope) -> Parts:
    """The parts of a posterior from its envelope, checked."""
    record = Record(content.record)
    space = read_space(record, dimension(content.arrays))
    mixture = read_mixture(record.text("structure"), content.arrays, space.dim)
    described = record.list("fits", lambda fit, what: Record(fit, what), _MOST_FITS)
    if not described:
        raise Malformed("it has no fits")
    fits = tuple(read_fit(fit, space, content.arrays, f"{i}/") for i, fit in enumerate(described))
    if len({fit.num_shards for fit in fits}) > 1 or len({fit.shard for fit in fits}) < len(fits):
        raise Malformed("its fits are not those of different shards")
    normaliser = None
    if record.any("log_normaliser") is not None:
        numbers = record.list("log_normaliser", number_or_nan, 2)
        if len(numbers) != 2:
            raise Malformed("its log_normaliser is not a value and a standard error")
        normaliser = Estimate(np.asarray(numbers[0]), np.asarray(numbers[1]))
    way = None if record.any("product") is None else _read_way(record.table("product"))
    key = record.list("key", lambda word, what: int(as_number(word, what)), 8)
    if len(key) != 2 or not all(0 <= word < 2**32 for word in key):
        raise Malformed("its key is not a seed")
    product = ProductMixture(mixture, normaliser, None, read_status(record))
    rounds = read_rounds(record, content, space.dim, [fit.label for fit in fits if not fit.is_stand_in])
    everything, effects = read_effects(record, content, space)
    found = rounds.get("certificate")
    if found is not None and found.chains is not None and found.chains.theta.shape[2] != everything.dim:
        raise Malformed(f"its certificate/chains are not draws of {everything.dim} parameters")
    return Parts(product, everything, fits, Choices(way, key), **rounds, effects=effects)


def _describe_way(way: Product) -> dict[str, Any]:
    settings = {field.name: getattr(way, field.name) for field in dataclasses.fields(way)}
    nested = {name: _describe_way(value) if isinstance(value, Product) else value for name, value in settings.items()}
    return {"name": type(way).__name__, **nested}


def _read_way(record: Record) -> Product:
    """A product method with its settings, which its constructor checks."""
    settings: dict[str, Any] = {}
    for key in record:
        value = record.any(key)
        if isinstance(value, dict):
            settings[key] = _read_way(record.table(key))
        elif value is None or (isinstance(value, bool | int | float) and abs(value) <= _MOST_SAMPLES):
            settings[key] = value
        elif key != "name":
            raise Malformed(f"its product has a setting {key[:40]!r} that is not a number up to {_MOST_SAMPLES:,}")
    try:
        return PRODUCTS.make(record.text("name"), settings)
    except (TypeError, EpviError):
        raise Malformed("its product is not one that this epvi knows") from None
