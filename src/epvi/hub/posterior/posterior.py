"""The posterior of all rows, with its draws, summary, density, certificate and provenance."""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Float

from epvi.gaussian.mixture import GaussianMixture
from epvi.ground import validation
from epvi.ground.errors import EpviError
from epvi.ground.float64 import ArrayLike
from epvi.ground.seeds import Seed, as_key
from epvi.ground.status import Status, StatusCode
from epvi.ground.validation import at_least
from epvi.hub.agreement.compatibility import missing_shards, numbered
from epvi.hub.agreement.conflict import Conflict, conflict_between
from epvi.hub.posterior import export
from epvi.hub.posterior.effects import Effects
from epvi.hub.posterior.file import pack_parts, unpack_parts
from epvi.hub.posterior.multiplied import checked_and_multiplied
from epvi.hub.posterior.parts import Choices, Parts
from epvi.hub.posterior.summary import Derive, Summary, probabilities, summarise, summary_of_draws
from epvi.hub.posterior.supports import resampled
from epvi.hub.product.result import ProductMixture
from epvi.hub.refine.step import Step
from epvi.hub.trust.certify import Certificate
from epvi.hub.trust.chains import Chains
from epvi.hub.trust.effects import EffectErrors
from epvi.hub.trust.importance import moved
from epvi.hub.trust.propose import asked_of, usual_base
from epvi.hub.trust.reasons import Verdict, told
from epvi.hub.trust.single_parameters import may_be_alone
from epvi.parameters.space import Space
from epvi.wire import envelope
from epvi.wire.request import NUM_DRAWS, Draws
from epvi.wire.shard_fit import ShardFit, fit_arrays

if TYPE_CHECKING:
    import pyarrow
    import xarray

# Draws behind quantiles and moments of constrained parameters. Judgement: a mean's Monte Carlo error is then 0.01 sds
# for independent draws, and smaller for these quasi-Monte Carlo ones.
_SUMMARY_DRAWS = 10_000
# The sum of the fits' KL divergences from their subposteriors, in nats, from which on `status` warns. Judgement: a
# Gaussian whose mean is one sd off has a divergence of 0.5.
_TOLERABLE_LOSS = 0.5
# Draws that are exported unless said: a mean's Monte Carlo error is then 0.03 sds.
_EXPORTED_DRAWS = 1000


@dataclasses.dataclass(frozen=True, eq=False)
class Posterior:
    """The posterior of all the data as a mixture of Gaussians over unconstrained θ.

    `status` says whether it can be used and what to do if not, `stands_for` which rows and shards it is based on.

    Attributes:
        product: the mixture, with the diagnostics of the method that computed it.
        space: names, shapes and supports of the parameters.
        fits: the shard fits that were combined.
        choices: the product method and the seed, to add late shards in the same way.
        certificate: whether the posterior can be trusted; None until draws of it were scored.
        step: state of its refinement; None before the first step.
        traffic: float64 numbers exchanged with the sites for certificate and refinement.
        effects: the group effects that were integrated out, given the other parameters; then `product`, `fits` and
            `certificate` are those of the other parameters. None if there are none.
    """

    product: ProductMixture
    space: Space
    fits: tuple[ShardFit, ...]
    choices: Choices = dataclasses.field(default_factory=Choices)
    certificate: Certificate | None = None
    step: Step | None = None
    traffic: int = 0
    effects: Effects | None = None

    @property
    def mixture(self) -> GaussianMixture:
        """The mixture over unconstrained θ; without the group effects, if these were integrated out."""
        return self.product.mixture

    def __repr__(self) -> str:
        return f"Posterior({self.space.describe()}; {self.stands_for}; {self.status})"

    @property
    def num_rows(self) -> int:
        """The number of rows of all shards in it."""
        return sum(fit.num_rows for fit in self.fits)

    @property
    def stands_for(self) -> str:
        """The rows and shards that it is based on, in words."""
        present = sum(not fit.is_stand_in for fit in self.fits)
        missing = missing_shards(self.fits)
        if not missing:
            return f"{self.num_rows:,} rows in {f'{present} shards' if present > 1 else '1 shard'}"
        total = self.fits[0].num_shards
        return f"{self.num_rows:,} rows in {present} of {total} shards, without the rows of shard {numbered(missing)}"

    @property
    def status(self) -> Status:
        """The certificate's verdict, or before that the status of the product and of the shard fits.

        KL divergences of the fits from their subposteriors add up. Parameters that a single shard hardly determines
        (scales, variances of random effects) suffer first.
        """
        if self.certificate is not None:
            return self.certificate.status
        if self.step is not None:
            return self.product.status
        lost = sum(fit.gap for fit in self.fits if not math.isnan(fit.gap))
        if lost < _TOLERABLE_LOSS:
            return self.product.status
        doubt = (
            f" The shards' fits are {lost:.2g} nats from their subposteriors in all: parameters that a shard alone"
            " hardly determines, such as scales, may be off. Compare with fewer shards."
        )
        found = self.product.status
        return Status(StatusCode.LOOSE_FITS if found.ok else found.code, found.text + doubt)

    @property
    def bytes_exchanged(self) -> int:
        """Bytes of all float64 numbers exchanged between sites and hub, without headers."""
        arrays = (x for fit in self.fits for x in fit_arrays(fit).values())
        return 8 * (sum(array.size for array in arrays) + self.traffic)

    def ask(self, num_draws: int = NUM_DRAWS, *, moments: bool = True, seed: Seed = 0) -> Draws:
        """Draws for the sites to score (`epvi.score`); with `moments` the scores also serve `epvi.refine`."""
        at_least("num_draws", num_draws, 64)
        self._refuse_effects("ask for scores by hand")
        slopes = moments and may_be_alone(self.mixture)
        return asked_of(self, num_draws, usual_base(self.space.dim) if moments else 0, slopes=slopes, seed=seed)

    def with_certificate(self, certificate: Certificate) -> "Posterior":
        """The same posterior with a certificate, whose importance weights correct its summary and draws."""
        return dataclasses.replace(self, certificate=certificate)

    def with_effects(self, space: Space, effects: Effects, errors: EffectErrors) -> "Posterior":
        """The posterior of all parameters `space`, from this one of all but some group effects with these errors."""
        found = self.certificate
        if found is not None and errors.faults:
            faults = (*found.faults, *errors.faults)
            found = dataclasses.replace(
                found, verdict=Verdict.NOT, text=told(faults, found.agreement.clause), faults=faults
            )
        found = None if found is None else dataclasses.replace(found, text=found.text + effects.said(errors))
        return dataclasses.replace(self, space=space, effects=effects, certificate=found)

    def update(self, *fits: ShardFit, accept_unconverged: bool = False) -> "Posterior":
        """The posterior with the fits of late shards added, in place of the stand-ins for these shards.

        The product is computed anew; certificate and refinement, which belong to the old posterior, are dropped.
        """
        self._refuse_effects("add shards")
        for fit in fits:
            if not isinstance(fit, ShardFit):
                raise EpviError(f"a fit is a {type(fit).__name__}: pass what epvi.fit_shard or epvi.load gives.")
        late = {fit.shard for fit in fits}
        others = [other for other in self.fits if not (other.is_stand_in and other.shard in late)]
        # Unconverged fits that are already in the posterior were accepted when it was combined.
        bad = [fit for fit in fits if not fit.can_be_multiplied]
        accept = accept_unconverged or (not bad and any(not other.can_be_multiplied for other in others))
        seed = np.asarray(self.choices.key, np.uint32)
        return Posterior(
            *checked_and_multiplied([*others, *fits], self.choices.product, seed, accept_unconverged=accept)
        )

    def _refuse_effects(self, what: str) -> None:
        if self.effects is not None:
            raise EpviError(
                f"this posterior cannot {what}: its {self.effects.num_effects:,} group effects were integrated out by"
                " epvi.fit; fit all rows again with epvi.fit."
            )

    def save(self, path: str | os.PathLike) -> Path:
        """Write it with its shard fits to a `.epvi` file, by atomic rename."""
        return envelope.save(path, pack_posterior(self), unpack_posterior)

    def conflict(self, *, seed: Seed = 0) -> Conflict:
        """Test each shard against the product of the others, with its influence on the posterior."""
        return conflict_between(self.fits, self.mixture, self.fits[0].space, seed=seed)

    def theta(self, num_samples: int, *, seed: Seed) -> Float[np.ndarray, "n d"]:
        """Draws of unconstrained θ: from the mixture or, if the certificate corrects it, by importance resampling.

        Draws of a mixture that is trusted as it is are moved and scaled by the little by which the weights change means
        and sds; where only single parameters can be certified, they are scaled by `certificate.scales`. Resampling
        repeats the scored draws in proportion to their weights: there are at most `num_draws` different ones. So it is,
        too, where group effects are known at some draws of the other parameters. If NUTS has sampled the posterior
        (`fallback`), draws are those of its chains, each as often as any other.
        """
        at_least("num_samples", num_samples, 1)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(as_key(seed))).tolist())
        if self.chains is not None:
            draws = self.chains.draws
            return draws[resampled(np.ones(len(draws)), num_samples, rng)]
        made = self._shared(num_samples, seed, rng)
        return made if self.effects is None else self.effects.theta(self.space, made, rng)

    @property
    def chains(self) -> Chains | None:
        """The draws of NUTS on all rows, if it was asked for and needed (`fallback` of `epvi.fit`)."""
        return None if self.certificate is None else self.certificate.chains

    def _shared(self, num_samples: int, seed: Seed, rng: np.random.Generator) -> Float[np.ndarray, "n p"]:
        """Draws of θ, without the group effects that were integrated out."""
        found = self.certificate
        if self.effects is not None and not self.effects.are_linear:
            return self.effects.supports[resampled(self.effects.weights, num_samples, rng)]
        adapted = self.step is not None and self.step.adapted > 0
        if found is not None and (found.resamples or (found.corrects and adapted)):
            return found.theta[resampled(found.weights, num_samples, rng)]
        made = np.asarray(self.mixture.sample(num_samples, seed=seed))
        if found is not None and found.scales is not None:
            mean = np.asarray(self.mixture.mean())
            return mean + found.scales * (made - mean)
        if found is None or found.verdict != Verdict.TRUST:
            return made
        mean, sd = np.asarray(self.mixture.mean()), np.asarray(self.mixture.sd())
        shift, ratio, _ = moved(found.theta, found.weights, found.own, self.mixture)
        return mean + sd * shift + ratio * (made - mean)

    def sample(self, num_samples: int, *, seed: Seed) -> dict[str, np.ndarray]:
        """The draws of `theta` as constrained parameters by name, of shape (num_samples, *shape) each."""
        return self.space.constrain(self.theta(num_samples, seed=seed))

    def log_density(self, theta: ArrayLike | Mapping[str, ArrayLike]) -> np.ndarray:
        """The mixture's log density over unconstrained coordinates, at θ (..., d) or at named constrained values."""
        if isinstance(theta, Mapping):
            theta = self.space.unconstrain(theta)
        if self.effects is not None:
            points = validation.points(theta, self.space.dim)
            flat = self.effects.log_density(self.space, self.mixture, np.reshape(points, (-1, self.space.dim)))
            return flat.reshape(points.shape[:-1])
        return np.asarray(self.mixture.log_density(theta))

    def summary(
        self,
        # The median and a central interval of 90 %, by convention.
        quantiles: Sequence[float] = (0.05, 0.5, 0.95),
        *,
        of: Derive | None = None,
        num_samples: int = _SUMMARY_DRAWS,
        seed: Seed = 0,
    ) -> Summary:
        """Mean, sd and quantiles of every parameter, corrected by the certificate's weights where there is one.

        `of` computes derived quantities from draws, as in `of=lambda draws: {"odds ratio": np.exp(draws["w"])}`.
        """
        at_least("num_samples", num_samples, 2)
        chosen = probabilities(quantiles)
        if self.chains is not None:
            return summary_of_draws(self.chains.draws, self.space, chosen, of)
        return summarise(self, chosen, num_samples, seed, of, self.effects)

    def groups(
        self,
        model: Any,
        rows: Any,
        *,
        # As in `summary`.
        quantiles: Sequence[float] = (0.05, 0.5, 0.95),
        num_samples: int = _EXPORTED_DRAWS,
        seed: Seed = 0,
    ) -> Any:
        """The posterior of the effects of the groups in these rows, for a model with `groups=`; `print` it for a table.

        It is computed where the rows are, at draws of the shared parameters: `mean`, `sd` and `quantiles` by name of
        the effect and group, `draws`, and `labels`, the groups as the column has them.
        """
        if not callable(getattr(model, "group_summary", None)) or getattr(model, "groups", None) is None:
            raise EpviError("model has no groups: pass the epvi.Model(..., groups=...) that was fitted.")
        levels = probabilities(quantiles)
        draws, effects = jax.random.split(as_key(seed))
        phi = self.theta(num_samples, seed=draws)
        return model.group_summary(rows, self.space, self.fits[0].made_of, phi, levels, effects)

    def draws_frame(self, num_samples: int = _EXPORTED_DRAWS, *, seed: Seed = 0) -> "pyarrow.Table":
        """The draws of `sample` as an Arrow table with a column per scalar, named as in the summary (`w[0]`).

        `.to_pandas()` makes it a pandas frame, `polars.from_arrow(table)` a Polars one. The schema's metadata has the
        provenance of the draws as JSON, under `epvi`.
        """
        return export.draws_frame(self, num_samples, seed)

    def to_arviz(
        self,
        num_samples: int = _EXPORTED_DRAWS,
        *,
        model: Any = None,
        rows: Any = None,
        num_chains: int | None = None,
        seed: Seed = 0,
    ) -> "xarray.DataTree":
        """The draws of `sample` as an ArviZ `DataTree`; `.to_netcdf(path)` and `.to_zarr(path)` write it to disk.

        With an `epvi.Model` and rows it also has the rows' log likelihoods, posterior predictive draws, the observed
        values and the model's other columns (all along the dimension `row`), and deterministic sites. `num_samples`
        counts the draws of all chains, four unless said. The draws are independent, so that ArviZ's R-hat and ESS are
        good by construction: use `status` and `certificate` to judge the posterior. If NUTS has sampled it
        (`fallback`), the chains are those of NUTS, thinned at equal distances, and R-hat and ESS tell how well they
        mixed. A `/` in a name becomes a dot.
        """
        return export.to_arviz(self, num_samples, num_chains, model, rows, seed)


def pack_posterior(posterior: Posterior) -> envelope.Envelope:
    """The envelope of a posterior."""
    return pack_parts(Parts(*(getattr(posterior, name) for name in Parts._fields)))


def unpack_posterior(content: envelope.Envelope) -> Posterior:
    """The posterior of an envelope, checked."""
    return Posterior(*unpack_parts(content))
