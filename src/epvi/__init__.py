"""Embarrassingly parallel variational inference: one posterior from data that never meets."""

import importlib
from typing import TYPE_CHECKING, Any

from epvi.ground.version import __version__

if TYPE_CHECKING:
    from epvi.extending import register
    from epvi.files import load
    from epvi.gaussian.mixture import Estimate, GaussianMixture, NaturalParameters
    from epvi.gaussian.structure import Structure
    from epvi.gaussian.structures import Diagonal, Full, Spherical
    from epvi.ground.errors import EpviError
    from epvi.ground.status import Status, StatusCode
    from epvi.hub.agreement.conflict import Conflict
    from epvi.hub.posterior.combine import combine
    from epvi.hub.posterior.posterior import Posterior
    from epvi.hub.posterior.summary import Summary
    from epvi.hub.product.anchored import Anchored
    from epvi.hub.product.chain import Chain
    from epvi.hub.product.exact import Exact
    from epvi.hub.product.multiply import multiply
    from epvi.hub.product.result import Product, ProductMixture
    from epvi.hub.product.subset import Subset
    from epvi.hub.refine.refine import refine
    from epvi.hub.samples.combine_draws import combine_draws
    from epvi.hub.samples.consensus import Consensus
    from epvi.hub.samples.exponential_family import ExponentialFamily
    from epvi.hub.samples.method import Combination, DrawsMethod
    from epvi.hub.samples.nonparametric import Nonparametric
    from epvi.hub.samples.parametric import Parametric
    from epvi.hub.samples.result import CombinedDraws
    from epvi.hub.samples.semiparametric import Semiparametric
    from epvi.hub.samples.weierstrass import Weierstrass
    from epvi.hub.trust.agreement import Accord, Agreement
    from epvi.hub.trust.certify import Certificate, certify
    from epvi.hub.trust.chains import Chains
    from epvi.parameters.space import Parameter, Space
    from epvi.prediction import log_predictive, predict
    from epvi.run.failures import ShardError
    from epvi.run.fit import fit
    from epvi.run.scoring import Scoring
    from epvi.site.derivatives.subposterior import Subposterior
    from epvi.site.fit.inference import Inference, LocalFit
    from epvi.site.fit.nvi import NVI
    from epvi.site.model.model import Model
    from epvi.site.rows.rows import Rows
    from epvi.site.tasks.chain import NUTS
    from epvi.site.tasks.fit_shard import fit_shard, subposterior
    from epvi.site.tasks.score import score
    from epvi.site.tasks.stand_in import stand_in
    from epvi.wire.answer import Scores
    from epvi.wire.request import Draws
    from epvi.wire.shard_fit import Provenance, ShardFit

# Where each public name is; it is fetched when it is first asked for, so that the command line answers at once.
_ROOMS = {
    "epvi.extending": ["register"],
    "epvi.files": ["load"],
    "epvi.gaussian.mixture": ["Estimate", "GaussianMixture", "NaturalParameters"],
    "epvi.gaussian.structure": ["Structure"],
    "epvi.gaussian.structures": ["Diagonal", "Full", "Spherical"],
    "epvi.ground.errors": ["EpviError"],
    "epvi.ground.status": ["Status", "StatusCode"],
    "epvi.hub.agreement.conflict": ["Conflict"],
    "epvi.hub.posterior.combine": ["combine"],
    "epvi.hub.posterior.posterior": ["Posterior"],
    "epvi.hub.posterior.summary": ["Summary"],
    "epvi.hub.product.anchored": ["Anchored"],
    "epvi.hub.product.chain": ["Chain"],
    "epvi.hub.product.exact": ["Exact"],
    "epvi.hub.product.multiply": ["multiply"],
    "epvi.hub.product.result": ["Product", "ProductMixture"],
    "epvi.hub.product.subset": ["Subset"],
    "epvi.hub.refine.refine": ["refine"],
    "epvi.hub.samples.combine_draws": ["combine_draws"],
    "epvi.hub.samples.consensus": ["Consensus"],
    "epvi.hub.samples.exponential_family": ["ExponentialFamily"],
    "epvi.hub.samples.method": ["Combination", "DrawsMethod"],
    "epvi.hub.samples.nonparametric": ["Nonparametric"],
    "epvi.hub.samples.parametric": ["Parametric"],
    "epvi.hub.samples.result": ["CombinedDraws"],
    "epvi.hub.samples.semiparametric": ["Semiparametric"],
    "epvi.hub.samples.weierstrass": ["Weierstrass"],
    "epvi.hub.trust.agreement": ["Accord", "Agreement"],
    "epvi.hub.trust.certify": ["Certificate", "certify"],
    "epvi.hub.trust.chains": ["Chains"],
    "epvi.parameters.space": ["Parameter", "Space"],
    "epvi.prediction": ["log_predictive", "predict"],
    "epvi.run.failures": ["ShardError"],
    "epvi.run.fit": ["fit"],
    "epvi.run.scoring": ["Scoring"],
    "epvi.site.derivatives.subposterior": ["Subposterior"],
    "epvi.site.fit.inference": ["Inference", "LocalFit"],
    "epvi.site.fit.nvi": ["NVI"],
    "epvi.site.model.model": ["Model"],
    "epvi.site.rows.rows": ["Rows"],
    "epvi.site.tasks.chain": ["NUTS"],
    "epvi.site.tasks.fit_shard": ["fit_shard", "subposterior"],
    "epvi.site.tasks.score": ["score"],
    "epvi.site.tasks.stand_in": ["stand_in"],
    "epvi.wire.answer": ["Scores"],
    "epvi.wire.request": ["Draws"],
    "epvi.wire.shard_fit": ["Provenance", "ShardFit"],
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "NUTS",
    "NVI",
    "Accord",
    "Agreement",
    "Anchored",
    "Certificate",
    "Chain",
    "Chains",
    "Combination",
    "CombinedDraws",
    "Conflict",
    "Consensus",
    "Diagonal",
    "Draws",
    "DrawsMethod",
    "EpviError",
    "Estimate",
    "Exact",
    "ExponentialFamily",
    "Full",
    "GaussianMixture",
    "Inference",
    "LocalFit",
    "Model",
    "NaturalParameters",
    "Nonparametric",
    "Parameter",
    "Parametric",
    "Posterior",
    "Product",
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
    "Status",
    "StatusCode",
    "Structure",
    "Subposterior",
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
    "register",
    "score",
    "stand_in",
    "subposterior",
]


def __getattr__(name: str) -> Any:
    if name == "engines":
        return importlib.import_module("epvi.engines")
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'epvi' has no attribute {name!r}")
    value = getattr(importlib.import_module(_ROOM_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
