"""Running a NumPyro model with given values, and what its sites depend on.

Takes the user's function, its arguments and the values of its latent sites; gives NumPyro's record of every site.
Plates give all their rows: subsampling is for optimisers that pick rows by themselves.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr
from jax.interpreters import partial_eval
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.distributions.distribution import ExpandedDistribution, Independent, MaskedDistribution, Unit
from numpyro.primitives import Messenger

from epvi.ground.errors import EpviError
from epvi.ground.float64 import promotion_allowed

Site = dict[str, Any]

# NumPyro's stack of handlers is one for all threads: two models must not run at once.
one_trace = threading.RLock()


class ModelTrace(NamedTuple):
    """The sites of one run, and by how much a plate that stands for more rows than it was given would scale them."""

    by_name: dict[str, Site]
    plate_scales: dict[str, float]
    # The sizes that subsampled plates asked for.
    asked: dict[str, int]


class _AllRows(Messenger):
    """Plates in full; one that is told of `num_rows` rows out of a larger total is a plate of those rows."""

    def __init__(self, function: Callable, num_rows: int, of_rows: Collection[str] | None) -> None:
        super().__init__(function)
        self.num_rows, self.of_rows = num_rows, of_rows
        self.scales: dict[str, float] = {}
        self.asked: dict[str, int] = {}

    def process_message(self, msg: Any) -> None:
        if msg["type"] != "plate":
            return
        size, subsample_size = msg["args"]
        if subsample_size is None or subsample_size == size:
            return
        self.asked[msg["name"]] = subsample_size
        may_be = self.of_rows is None or msg["name"] in self.of_rows
        taken = self.num_rows if may_be and subsample_size == self.num_rows else size
        self.scales[msg["name"]] = size / taken
        msg["args"] = (taken, taken)
        msg["value"] = jnp.arange(taken)


def run(
    function: Callable,
    value_of: Callable[[Site], Any],
    arguments: Mapping[str, Any],
    num_rows: int,
    of_rows: Collection[str] | None,
) -> ModelTrace:
    """Run the model with latent values chosen by `value_of` and record its sites.

    Only plates in `of_rows`, or any when it is not known yet, are plates of `num_rows` rows out of a larger total.
    """
    with one_trace, promotion_allowed():
        seeded = handlers.seed(function, rng_seed=0)
        full = _AllRows(handlers.substitute(seeded, substitute_fn=value_of), num_rows, of_rows)
        return ModelTrace(dict(handlers.trace(full).get_trace(**arguments)), full.scales, full.asked)


def given(values: Mapping[str, Any]) -> Callable[[Site], Any]:
    """Latent sites have these values."""
    return lambda site: values.get(site["name"]) if is_latent(site) else None


def placed(site: Site) -> Any:
    """A value inside the support of a latent site, found without drawing (improper priors cannot be drawn from)."""
    if not is_latent(site):
        return None
    shape = site["fn"].shape(site["kwargs"].get("sample_shape", ()))
    if is_discrete(site):
        return jnp.broadcast_to(choices(site)[0], shape)
    try:
        transform = biject_to(site["fn"].support)
    except NotImplementedError:
        raise EpviError(
            f"parameter {site['name']!r} lives in {site['fn'].support}, for which NumPyro has no bijection from"
            " unconstrained numbers: write it as a function of parameters that have one."
        ) from None
    return transform(jnp.zeros(transform.inverse_shape(shape)))


def filled(site: Site) -> Any:
    """Zeros of a latent site's shape, where only shapes matter."""
    if not is_latent(site):
        return None
    shape = site["fn"].shape(site["kwargs"].get("sample_shape", ()))
    return jnp.zeros(shape, int if is_discrete(site) else float)


def is_latent(site: Site) -> bool:
    """Whether the site is a sample site without an observed value."""
    return site["type"] == "sample" and not site["is_observed"]


def is_factor(site: Site) -> bool:
    """Whether the site came from `numpyro.factor`."""
    base = site["fn"]
    while hasattr(base, "base_dist"):
        base = base.base_dist
    return isinstance(base, Unit)


def is_discrete(site: Site) -> bool:
    """Whether the values of the site are countable."""
    support = site["fn"].support
    return support is not None and bool(support.is_discrete)


def choices(site: Site) -> Any:
    """The values that a discrete site can take, one per entry of the leading axis, each of the shape of one entry."""
    base = _single(site["fn"])
    if not base.has_enumerate_support:
        raise EpviError(
            f"the discrete parameter {site['name']!r} has infinitely many values, so NumPyro cannot enumerate it:"
            " sum it out by hand and put the result into numpyro.factor."
        )
    values = base.enumerate_support(expand=False)
    return jnp.reshape(values, (values.shape[0], *base.event_shape))


def _single(distribution: Any) -> Any:
    """The distribution of one entry, where `expand`, `to_event` and `mask` made several of it."""
    while isinstance(distribution, ExpandedDistribution | Independent | MaskedDistribution):
        distribution = distribution.base_dist
    return distribution


def log_prob(site: Site, sites: ModelTrace) -> Any:
    """The site's log density as the model counts it: masked, scaled, one number per entry of its batch."""
    with promotion_allowed():
        intermediates = site.get("intermediates")
        extra = (intermediates,) if intermediates else ()
        value = site["fn"].log_prob(site["value"], *extra)
        scale = 1.0 if site["scale"] is None else site["scale"]
        for frame in site["cond_indep_stack"]:
            scale = scale / sites.plate_scales.get(frame.name, 1.0)
        return value if isinstance(scale, float) and scale == 1.0 else scale * value


def depends(jaxpr: ClosedJaxpr, sources: Sequence[bool]) -> list[bool]:
    """Which outputs of a program are computed from any of the marked inputs."""
    reached = []
    for i in range(len(jaxpr.jaxpr.outvars)):
        # What is left of the program when only this output is wanted, also inside of compiled parts and loops.
        _, used = partial_eval.dce_jaxpr(jaxpr.jaxpr, [i == j for j in range(len(jaxpr.jaxpr.outvars))])
        reached.append(any(a and b for a, b in zip(used, sources, strict=True)))
    return reached


def trace_program(function: Callable, *arguments: Any) -> tuple[ClosedJaxpr, Any]:
    """The program that JAX makes of the model, and the shapes of what it gives; or one sentence why it cannot."""
    try:
        return jax.make_jaxpr(function, return_shape=True)(*arguments)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        raise EpviError(
            f"JAX cannot trace the model ({_first_line(error)}): use jnp.where or jax.lax instead of Python's `if`,"
            " loops and NumPy on values of rows or parameters."
        ) from error
    except EpviError:
        raise
    except Exception as error:
        raise failed(error) from error


def failed(error: Exception) -> EpviError:
    """What the user's own function raised, as one sentence."""
    return EpviError(f"the model raised {type(error).__name__}: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0].rstrip(".")
