"""One of eight shards is missing: the posterior of the other seven against NUTS on their rows with the full prior.

Run: python benchmarks/missing.py (about two minutes on two cores; --quick for fewer rows and a short NUTS). The missing
shard's share of the prior is kept in two ways: a hierarchical prior is carried by a present site (2/8), a Gaussian one
by a stand-in shard without rows. The posterior of all eight shards against NUTS on all rows is the baseline. Then the
late shard is added. Last, the error that a stand-in would cause for the hierarchical prior, which is a funnel and which
epvi refuses.
"""

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS

import epvi
from epvi.ground.float64 import promotion_allowed
from epvi.models import logistic, simulate_logistic
from epvi.models.logistic import SmoothBernoulli
from epvi.site.derivatives.passes import programs_of

Rows = dict[str, np.ndarray]

M, V, CONDITION = 8, 4, 30
# Target: how much larger the error of seven shards may be than that of eight, beyond the Monte Carlo error of NUTS, in
# means (in sds) and in log sds.
MARGIN_MEAN, MARGIN_SD = 0.05, 0.02


@dataclasses.dataclass(frozen=True)
class Plan:
    """The size of a run."""

    num_rows: int = 8000
    warm_up: int = 1000
    draws: int = 8000


QUICK = Plan(2000, 300, 1000)


class Away(NamedTuple):
    """Largest differences between a posterior and NUTS over the coordinates of θ."""

    mean: float  # in sds of NUTS
    mean_error: float  # Monte Carlo standard error of that mean of NUTS
    log_sd: float
    sd_error: float  # Monte Carlo standard error of that log sd of NUTS

    def __str__(self) -> str:
        return (
            f"means off by {self.mean:.3f} ± {self.mean_error:.3f} sds, sds by {100 * self.log_sd:.1f} ±"
            f" {100 * self.sd_error:.1f} %"
        )


class Case(NamedTuple):
    """The results for one prior."""

    name: str
    seven: Away  # seven shards against NUTS on their rows
    eight: Away  # eight shards against NUTS on all rows
    late_mean: float  # seven shards and the late one against eight: means, in sds
    late_log_sd: float  # the same: log sds
    stands_for: str  # what the posterior of seven shards says it is the posterior of

    def as_good(self) -> bool:
        """Whether seven shards agree with NUTS as well as eight do, within the margins."""
        a, b = self.seven, self.eight
        mean = a.mean <= b.mean + MARGIN_MEAN + 3 * np.hypot(a.mean_error, b.mean_error)
        return bool(mean and a.log_sd <= b.log_sd + MARGIN_SD + 3 * np.hypot(a.sd_error, b.sd_error))


def gaussian(x: Any, y: Any = None) -> None:
    """Logistic regression under a Gaussian prior."""
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", SmoothBernoulli(x @ w), obs=y)


def shards_of(rows: Rows) -> list[Rows]:
    return [{name: column[m::M] for name, column in rows.items()} for m in range(M)]


def by_nuts(model: Callable, rows: Rows, space: epvi.Space, plan: Plan, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Unconstrained draws (S, d), and their effective sample sizes (d,)."""
    with jax.enable_x64(True), promotion_allowed():
        chain = MCMC(NUTS(model), num_warmup=plan.warm_up, num_samples=plan.draws, progress_bar=False)
        chain.run(jax.random.key(seed), **rows)
        theta = np.asarray(space.unconstrain({name: np.asarray(v) for name, v in chain.get_samples().items()}))
    return theta, np.asarray(effective_sample_size(theta[None]))


def away(posterior: epvi.Posterior, nuts: tuple[np.ndarray, np.ndarray]) -> Away:
    theta, ess = nuts
    mean, sd = np.mean(theta, axis=0), np.std(theta, axis=0, ddof=1)
    means = np.abs(np.asarray(posterior.mixture.mean()) - mean) / sd
    sds = np.abs(np.log(np.asarray(posterior.mixture.sd()) / sd))
    i, j = np.argmax(means), np.argmax(sds)
    return Away(float(means[i]), float(ess[i] ** -0.5), float(sds[j]), float((2 * ess[j]) ** -0.5))


def compare(one: epvi.Posterior, other: epvi.Posterior) -> tuple[float, float]:
    """The largest differences of means, in sds of `other`, and of log sds."""
    a, b = one.mixture, other.mixture
    means = np.abs(np.asarray(a.mean()) - b.mean()) / b.sd()
    return float(np.max(means)), float(np.max(np.abs(np.log(a.sd() / b.sd()))))


def case(name: str, plan: Plan, seed: int) -> Case:
    """The case of the hierarchical prior, carried by shard 1, or of the Gaussian one, with a stand-in."""
    rows, _ = simulate_logistic(plan.num_rows, V, condition=CONDITION, seed=seed)
    parts = shards_of(rows)
    present = {n: np.concatenate([part[n] for part in parts[:-1]]) for n in rows}
    function = {"hierarchical": logistic, "gaussian": gaussian}[name]
    model = epvi.Model(function)
    fits = [epvi.fit_shard(model, part, f"{m}/{M}", seed=seed) for m, part in enumerate(parts, start=1)]
    if name == "hierarchical":
        carrier = epvi.fit_shard(model, parts[0], f"1/{M}", prior=f"2/{M}", seed=seed)
        seven = epvi.combine([carrier, *fits[1:-1]], seed=seed)
        late = epvi.fit_shard(model, parts[-1], f"{M}/{M}", prior=0, seed=seed)
    else:
        stand_in = epvi.stand_in(model, parts[0], f"{M}/{M}", seed=seed)
        seven = epvi.combine([*fits[:-1], stand_in], seed=seed)
        late = fits[-1]
    eight = epvi.combine(fits, seed=seed)
    of_seven = away(seven, by_nuts(function, present, seven.space, plan, seed))
    of_eight = away(eight, by_nuts(function, rows, eight.space, plan, seed))
    return Case(name, of_seven, of_eight, *compare(seven.update(late), eight), seven.stands_for)


def forced(plan: Plan, seed: int) -> float:
    """The largest shift of a mean, in sds, if a Gaussian replaces the hierarchical prior's share."""
    rows, _ = simulate_logistic(plan.num_rows, V, condition=CONDITION, seed=seed)
    parts, model = shards_of(rows), epvi.Model(logistic)
    fits = [epvi.fit_shard(model, part, f"{m}/{M}", seed=seed) for m, part in enumerate(parts[:-1], start=1)]
    carrier = epvi.fit_shard(model, parts[0], f"1/{M}", prior=f"2/{M}", seed=seed)
    space = programs_of(model, parts[0]).target.space
    # alpha ~ Gamma(1, 1/100), w | alpha ~ N(0, 1/alpha): Laplace's approximation of p(log alpha, w), by hand.
    peak = np.log((1 + V / 2) / 0.01)
    precision = np.diag([1 + V / 2, *np.full(V, np.exp(peak))]) / M
    mixture = epvi.GaussianMixture.from_covariances(np.array([[peak, *np.zeros(V)]]), np.linalg.inv(precision)[None])
    made_of = dataclasses.replace(fits[0].made_of, rows="")
    stand_in = dataclasses.replace(fits[0], mixture=mixture, space=space, shard=M, num_rows=0, made_of=made_of)
    return compare(epvi.combine([*fits, stand_in]), epvi.combine([carrier, *fits[1:]]))[0]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2,000 rows, short NUTS")
    parser.add_argument("--seed", type=int, default=0, help="of the rows, the fits and NUTS")
    chosen = parser.parse_args(arguments)
    plan = QUICK if chosen.quick else Plan()
    print(f"Logistic regression: N = {plan.num_rows:,} rows, V = {V} columns, condition {CONDITION}, M = {M} shards")
    ways = {"hierarchical": "shard 1 carries 2/8, the late shard has --prior 0", "gaussian": "shard 8 without rows"}
    for name, way in ways.items():
        found = case(name, plan, chosen.seed)
        print(
            f"\n{name} prior ({way}): {found.stands_for}\n"
            f"  7 shards beside NUTS: {found.seven}\n"
            f"  8 shards beside NUTS: {found.eight}\n"
            f"  {'met' if found.as_good() else 'MISSED'}: 7 shards agree with NUTS as well as 8, within {MARGIN_MEAN}"
            f" sds and {100 * MARGIN_SD:.0f} % beyond NUTS' error\n"
            f"  late shard in: off the 8 shards' posterior by {found.late_mean:.2g} sds, sds by"
            f" {100 * found.late_log_sd:.2g} %",
            flush=True,
        )
    moved = forced(plan, chosen.seed)
    print(f"\nA Gaussian in the place of the hierarchical prior's share moves a mean by {moved:.1f} sds")


if __name__ == "__main__":
    main()
