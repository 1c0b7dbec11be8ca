"""Embarrassingly parallel variational inference: one posterior from data that never meets."""

import importlib
from typing import TYPE_CHECKING, Any

from epvi.ground.version import __version__

if TYPE_CHECKING:
    from epvi.files import load
    from epvi.gaussian.mixture import Estimate, GaussianMixture, NaturalParameters
    from epvi.gaussian.structure import Diagonal, Full, Spherical
    from epvi.ground.errors import EpviError
    from epvi.hub import Certificate, Conflict, Posterior, Summary
    from epvi.hub.posterior import combine
    from epvi.hub.product import Anchored, Chain, Exact, ProductMixture, Subset, multiply
    from epvi.hub.refine import refine
    from epvi.hub.samples import (
        CombinedDraws,
        Consensus,
        ExponentialFamily,
        Nonparametric,
        Parametric,
        Semiparametric,
        Weierstrass,
        combine_draws,
    )
    from epvi.hub.trust import certify
    from epvi.parameters.space import Parameter, Space
    from epvi.prediction import log_predictive, predict
    from epvi.run.fit import fit
    from epvi.run.rounds import Scoring
    from epvi.run.shards import ShardError
    from epvi.site import NVI, Model, Rows, fit_shard, score, stand_in
    from epvi.wire.answer import Scores
    from epvi.wire.request import Draws
    from epvi.wire.shard_fit import Provenance, ShardFit

# Where each public name is; it is fetched when it is first asked for, so that the command line answers at once.
_ROOMS = {
    "epvi.wire.request": ["Draws"],
    "epvi.ground.errors": ["EpviError"],
    "epvi.files": ["load"],
    "epvi.wire.shard_fit": ["Provenance", "ShardFit"],
    "epvi.hub": ["Certificate", "Conflict", "Posterior", "Summary", "certify", "combine", "refine"],
    "epvi.hub.samples": [
        "CombinedDraws",
        "Consensus",
        "ExponentialFamily",
        "Nonparametric",
        "Parametric",
        "Semiparametric",
        "Weierstrass",
        "combine_draws",
    ],
    "epvi.hub.product": ["Anchored", "Chain", "Exact", "ProductMixture", "Subset", "multiply"],
    "epvi.gaussian.mixture": ["Estimate", "GaussianMixture", "NaturalParameters"],
    "epvi.prediction": ["log_predictive", "predict"],
    "epvi.run.rounds": ["Scoring"],
    "epvi.run.fit": ["fit"],
    "epvi.wire.answer": ["Scores"],
    "epvi.site": ["NVI", "Model", "Rows", "fit_shard", "score", "stand_in"],
    "epvi.run.shards": ["ShardError"],
    "epvi.parameters.space": ["Parameter", "Space"],
    "epvi.gaussian.structure": ["Diagonal", "Full", "Spherical"],
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "NVI",
    "Anchored",
    "Certificate",
    "Chain",
    "CombinedDraws",
    "Conflict",
    "Consensus",
    "Diagonal",
    "Draws",
    "EpviError",
    "Estimate",
    "Exact",
    "ExponentialFamily",
    "Full",
    "GaussianMixture",
    "Model",
    "NaturalParameters",
    "Nonparametric",
    "Parameter",
    "Parametric",
    "Posterior",
    "ProductMixture",
    "Provenance",
    "Rows",
    "Scores",
    "Scoring",
    "Semiparametric",
    "ShardError",
    "ShardFit",
    "Space",
    "Spherical",
    "Subset",
    "Summary",
    "Weierstrass",
    "__version__",
    "certify",
    "combine",
    "combine_draws",
    "fit",
    "fit_shard",
    "load",
    "log_predictive",
    "multiply",
    "predict",
    "refine",
    "score",
    "stand_in",
]


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'epvi' has no attribute {name!r}")
    value = getattr(importlib.import_module(_ROOM_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
