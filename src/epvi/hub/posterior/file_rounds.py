"""Write and read a posterior's certificate and the state of its refinement.

Takes and gives `Certificate` and `Step`. Both are optional: a posterior that was never scored has neither. Numbers may
be infinite (the ELBO is −inf when p is 0 at a draw), for which JSON has no notation: these are written as strings.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from epvi.gaussian.mixture import Estimate
from epvi.hub.posterior.file_chains import chains_arrays, describe_chains, read_chains
from epvi.hub.posterior.file_pool import describe_pool, pool_arrays, read_pool
from epvi.hub.posterior.parts import Parts
from epvi.hub.refine.natural_gradient import JointMoments
from epvi.hub.refine.step import Run, Step
from epvi.hub.trust.agreement import Accord, Agreement, agreement_of
from epvi.hub.trust.certify import Certificate
from epvi.hub.trust.reasons import Fault, Reason, Verdict
from epvi.hub.trust.score_test import Tested
from epvi.wire.answer import Expected, read_array
from epvi.wire.codec import mixture_arrays, read_mixture
from epvi.wire.envelope import Envelope, Malformed
from epvi.wire.record import Record, as_number, printable
from epvi.wire.request import MOST_BASE, MOST_CENTRES, MOST_DRAWS, read_points

_PLAIN = ("ess", "efficiency", "k_hat", "mean_shift", "mean_error", "doubt")
_DRAWS = ("theta", "weights", "own")
_ENDLESS = ("inf", "-inf", "nan")
# The largest absolute value of a finite number: its square is still finite in float64, which ends at 1.8e308.
_MOST = 1e150
# Refinement rounds that a file may claim. Judgement: a run takes ten unless told otherwise.
_MOST_ROUNDS = 10**6
# How far normalised weights may sum from 1, and the effective sample size exceed the number of draws (relative). The
# rounding error of a sum of MOST_DRAWS float64 weights is at most 2**20 * 1.1e-16, about 1e-10.
_SUM = 1e-6
# Reasons of a verdict, which has each at most once. Judgement: room for those of later versions.
_MOST_REASONS = 64


def pack_rounds(parts: Parts) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Certificate, step and traffic: their part of the JSON record, and their arrays."""
    record = {
        "certificate": describe_certificate(parts.certificate),
        "step": describe_step(parts.step),
        "traffic": parts.traffic,
    }
    return record, certificate_arrays(parts.certificate, "certificate/") | step_arrays(parts.step)


def read_rounds(record: Record, content: Envelope, dim: int, shards: Sequence[str]) -> Mapping[str, Any]:
    """Certificate, step and traffic by the names of the posterior's fields, as far as the file has them.

    `shards` are the labels of those that have rows.
    """
    made: dict[str, Any] = {}
    if _there(record, "certificate"):
        table = record.table("certificate")
        made["certificate"] = read_certificate(table, content, "certificate/", dim, shards)
    if _there(record, "step"):
        made["step"] = read_step(record.table("step"), content, dim, shards)
    if _there(record, "traffic"):
        made["traffic"] = record.whole("traffic", 0, 2**53)
    return made


def _there(record: Record, name: str) -> bool:
    return name in set(record) and record.any(name) is not None


def describe_certificate(certificate: Certificate | None) -> dict[str, Any] | None:
    """A certificate without its arrays, as JSON."""
    if certificate is None:
        return None
    evidence = certificate.log_evidence
    return {
        "verdict": certificate.verdict.value,
        "text": printable(certificate.text),
        "reasons": [{"code": one.reason.value, "finding": printable(one.finding)} for one in certificate.faults],
        "corrects": certificate.corrects,
        **{name: _said(getattr(certificate, name)) for name in _PLAIN},
        "sd_ratios": [_said(ratio) for ratio in certificate.sd_ratios],
        "elbo": [_said(x) for x in certificate.elbo],
        "log_evidence": None if evidence is None else [_said(x) for x in evidence],
        "conflict": list(certificate.agreement.p),
        "agreement": _describe_agreement(certificate.agreement),
        "chains": describe_chains(certificate.chains),
    }


def certificate_arrays(certificate: Certificate | None, prefix: str) -> dict[str, np.ndarray]:
    """A certificate's arrays by name."""
    if certificate is None:
        return {}
    draws = {prefix + name: getattr(certificate, name) for name in _DRAWS}
    scales = {} if certificate.scales is None else {prefix + "scales": certificate.scales}
    return draws | scales | chains_arrays(certificate.chains, prefix)


def read_certificate(record: Record, content: Envelope, prefix: str, dim: int, shards: Sequence[str]) -> Certificate:
    """The certificate of a posterior in `dim` dimensions with these scored shards, checked."""
    verdict, text = record.text("verdict"), record.text("text")
    if verdict == Verdict.SAMPLED and not _there(record, "chains"):
        raise Malformed("its verdict is about draws of NUTS, which it does not have")
    if verdict not in set(Verdict):
        words = ", ".join(f'"{word}"' for word in Verdict)
        raise Malformed(f"its verdict is not one of {words}")
    if not text:
        raise Malformed("its certificate has no text")
    theta = read_points(content, f"{prefix}theta", None, dim)
    if not 1 <= len(theta) <= MOST_DRAWS:
        raise Malformed(f"its {prefix}theta are not from 1 to {MOST_DRAWS:,} draws")
    plain = {name: _number(record.any(name), name) for name in _PLAIN}
    if not 0 <= plain["ess"] <= len(theta) * (1 + _SUM):
        raise Malformed("its ess is not a number of its draws")
    ratios = _pair(record, "sd_ratios")
    if not 0 <= ratios[0] <= ratios[1]:
        raise Malformed("its sd_ratios are not two factors, the smaller one first")
    return Certificate(
        verdict=Verdict(verdict),
        text=text,
        corrects=record.truth("corrects"),
        **plain,
        sd_ratios=ratios,
        elbo=_estimate(_pair(record, "elbo")),
        log_evidence=None if record.any("log_evidence") is None else _estimate(_pair(record, "log_evidence")),
        agreement=_read_agreement(record, shards),
        theta=theta,
        weights=_weights(content, f"{prefix}weights", len(theta)),
        own=_weights(content, f"{prefix}own", len(theta)),
        faults=record.list("reasons", _fault, _MOST_REASONS) if _there(record, "reasons") else (),
        scales=_scales(content, f"{prefix}scales", dim),
        chains=read_chains(record.table("chains"), content, prefix) if _there(record, "chains") else None,
    )


def _describe_agreement(agreement: Agreement) -> dict[str, Any]:
    places = [agreement.shards.index(label) for label in agreement.flagged]
    return {"verdict": agreement.verdict.value, "text": printable(agreement.text), "flagged": places}


def _read_agreement(record: Record, shards: Sequence[str]) -> Agreement:
    """Whether the shards agree, checked; files of versions with one verdict have the p-values alone."""
    count = len(shards)
    p = record.list("conflict", _chance, count)
    if len(p) != count:
        raise Malformed("its conflict does not have a chance for every shard that has rows")
    if not _there(record, "agreement"):
        return agreement_of(shards, Tested(tuple(p), (True,) * count if count > 1 else (False,) * count))
    table = record.table("agreement")
    verdict, text = table.text("verdict"), table.text("text")
    if verdict not in set(Accord):
        raise Malformed(f"its agreement is not one of {', '.join(Accord)}")
    places = table.list("flagged", _whole, count)
    if not text or any(not 0 <= m < count for m in places) or len(set(places)) < len(places):
        raise Malformed("its agreement has no text, or flags shards that it does not have")
    if bool(places) != (verdict == Accord.DISAGREE):
        raise Malformed("its agreement flags shards and says that they agree, or the other way round")
    return Agreement(Accord(verdict), text, tuple(shards), tuple(p), tuple(shards[m] for m in places))


def _whole(value: Any, what: str) -> int:
    number = as_number(value, what)
    if number != int(number):
        raise Malformed(f"its {what} has something that is not a whole number")
    return int(number)


def describe_step(step: Step | None) -> dict[str, Any] | None:
    """The state of a refinement without its arrays, as JSON."""
    if step is None:
        return None
    before = None
    if step.before is not None:
        before = {"structure": step.before.gaussians.structure.name}
    return {
        "rounds": step.rounds,
        "rate": step.rate,
        "gained": _said(step.gained),
        "before": before,
        "mixture": None if step.mixture is None else step.mixture.structure.name,
        "certificate": describe_certificate(step.certificate),
        "adapted": step.adapted,
        "mixture_adapted": step.mixture_adapted,
        "pool": describe_pool(step.pool),
        "first": _describe_run(step.first),
        "around": step.around,
    }


def step_arrays(step: Step | None) -> dict[str, np.ndarray]:
    """The arrays of a refinement's state by name."""
    if step is None:
        return {}
    arrays = certificate_arrays(step.certificate, "before/certificate/") | pool_arrays(step.pool, "pool/")
    if step.first is not None:
        arrays |= mixture_arrays(step.first.mixture, "first/posterior/") | pool_arrays(step.first.pool, "first/pool/")
        arrays |= certificate_arrays(step.first.certificate, "first/certificate/")
    if step.mixture is not None:
        arrays |= mixture_arrays(step.mixture, "before/posterior/")
    if step.before is not None:
        values, gradient, hessian = step.before.expected
        arrays |= mixture_arrays(step.before.gaussians, "before/") | {"before/base": step.before.base}
        arrays |= {"before/values": values, "before/gradient": gradient, "before/hessian": hessian}
    return arrays


def read_step(record: Record, content: Envelope, dim: int, shards: Sequence[str]) -> Step:
    """The state of a refinement, checked."""
    rate = record.number("rate")
    if not 0 < rate <= 1:
        raise Malformed("its rate is not a step size above 0, up to 1")
    before = certificate = None
    if record.any("before") is not None:
        before = _read_moments(record.table("before").text("structure"), content, dim)
    if record.any("certificate") is not None:
        table = record.table("certificate")
        certificate = read_certificate(table, content, "before/certificate/", dim, shards)
    mixture = None
    if record.any("mixture") is not None:
        mixture = read_mixture(record.text("mixture"), content.arrays, dim, "before/posterior/")
    gained = _number(record.any("gained"), "gained")
    # Files of versions without adaptive rounds lack these.
    adapted, of_mixture, around = (
        record.whole(name, 0, _MOST_ROUNDS) if _there(record, name) else 0
        for name in ("adapted", "mixture_adapted", "around")
    )
    pool = read_pool(record, content, dim, "pool/") if _there(record, "pool") else None
    first = _read_run(record.table("first"), content, dim, shards) if _there(record, "first") else None
    if pool is not None and (mixture is None or certificate is None or before is not None):
        raise Malformed("its pool of scored draws is there without the posterior to return to")
    if around and (first is None or pool is not None):
        raise Malformed("it looks around the heaviest draws without the run that they are of")
    rounds = record.whole("rounds", 0, _MOST_ROUNDS)
    return Step(rounds, rate, gained, before, mixture, certificate, adapted, of_mixture, pool, first, around)


def _describe_run(run: Run | None) -> dict[str, Any] | None:
    """A run of adaptive rounds without its arrays, as JSON."""
    if run is None:
        return None
    return {
        "mixture": run.mixture.structure.name,
        "certificate": describe_certificate(run.certificate),
        "adapted": run.adapted,
        "pool": describe_pool(run.pool),
    }


def _read_run(record: Record, content: Envelope, dim: int, shards: Sequence[str]) -> Run:
    return Run(
        read_mixture(record.text("mixture"), content.arrays, dim, "first/posterior/"),
        read_certificate(record.table("certificate"), content, "first/certificate/", dim, shards),
        record.whole("adapted", 0, _MOST_ROUNDS),
        read_pool(record, content, dim, "first/pool/"),
    )


def _read_moments(structure: str, content: Envelope, dim: int) -> JointMoments:
    gaussians = read_mixture(structure, content.arrays, dim, "before/")
    base = read_points(content, "before/base", None, dim)
    count, size = gaussians.num_components, len(base)
    if count > MOST_CENTRES or not 4 <= size <= MOST_BASE or size % 2:
        raise Malformed(f"its Gaussians before the step are more than {MOST_CENTRES}, or its base draws not pairs")
    # Not as a triangle: sums over shards are not exactly symmetric, and reading must give the same bits.
    shape = gaussians.structure.hessians.identity(dim).shape
    hessian = read_array(content, "before/hessian", (count, *shape))
    values = read_array(content, "before/values", (count, size))
    return JointMoments(
        gaussians, base, Expected(values, read_array(content, "before/gradient", (count, dim)), hessian)
    )


def _said(value: Any) -> float | str:
    number = float(value)
    return number if math.isfinite(number) else str(number)


def _number(value: Any, what: str) -> float:
    """A finite number, or one of the strings for infinities and NaN."""
    if isinstance(value, str) and value in _ENDLESS:
        return float(value)
    number = as_number(value, what)
    if abs(number) > _MOST:
        raise Malformed(f"its {what} is beyond {_MOST:g}")
    return number


def _fault(value: Any, what: str) -> Fault:
    """A reason code with its clause; codes of later versions become OTHER."""
    record = Record(value, what)
    code = record.text("code")
    return Fault(Reason(code) if code in set(Reason) else Reason.OTHER, record.text("finding"))


def _pair(record: Record, name: str) -> tuple[float, float]:
    found = record.list(name, _number, 2)
    if len(found) != 2:
        raise Malformed(f"its {name} are not two numbers")
    return found[0], found[1]


def _estimate(pair: Sequence[float]) -> Estimate:
    return Estimate(np.asarray(pair[0]), np.asarray(pair[1]))


def _chance(value: Any, what: str) -> float:
    chance = as_number(value, what)
    if not 0 <= chance <= 1:
        raise Malformed(f"its {what} has something that is not a chance from 0 to 1")
    return chance


def _scales(content: Envelope, name: str, dim: int) -> np.ndarray | None:
    """Factors of sds; None in files of earlier versions, and where there are none."""
    if name not in content.arrays:
        return None
    found = read_array(content, name, (dim,))
    if np.any(found <= 0):
        raise Malformed(f"its {name} are not positive")
    return found


def _weights(content: Envelope, name: str, count: int) -> np.ndarray:
    found = read_array(content, name, (count,))
    if np.any(found < 0) or not abs(np.sum(found) - 1) < _SUM:
        raise Malformed(f"its {name} are not weights that sum to 1")
    return found
