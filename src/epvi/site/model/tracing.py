"""Traces a NumPyro model with given latent values, and finds what its NumPyro sites depend on.

Takes the user's function, its arguments and the values of its latent variables; gives NumPyro's trace. "Sites" in this
module are NumPyro's. Subsampled plates are run in full: epvi takes care itself of which rows it uses.
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

# NumPyro's record (message) of one site in a trace.
Site = dict[str, Any]

# NumPyro's stack of effect handlers is shared by all threads: only one model may run at a time.
one_trace = threading.RLock()


class ModelTrace(NamedTuple):
    """The trace of one run of a model."""

    # NumPyro sites by name.
    by_name: dict[str, Site]
    # Size over number of rows of each subsampled plate: the factor by which NumPyro scales log densities inside it.
    plate_scales: dict[str, float]
    # The subsample sizes that subsampled plates asked for.
    asked: dict[str, int]


class _AllRows(Messenger):
    """Runs subsampled plates in full; one with a subsample of `num_rows` becomes a plate of the given rows."""

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
    """Run the model with latent values chosen by `value_of` and record its trace.

    `of_rows` names the subsampled plates whose subsample is the `num_rows` given rows; None if not known yet, which
    allows all of that subsample size.
    """
    with one_trace, promotion_allowed():
        seeded = handlers.seed(function, rng_seed=0)
        full = _AllRows(handlers.substitute(seeded, substitute_fn=value_of), num_rows, of_rows)
        return ModelTrace(dict(handlers.trace(full).get_trace(**arguments)), full.scales, full.asked)


def given(values: Mapping[str, Any]) -> Callable[[Site], Any]:
    """A `value_of` for `run` that looks latent values up by name."""
    return lambda site: values.get(site["name"]) if is_latent(site) else None


def placed(site: Site) -> Any:
    """A `value_of` for `run`: a value inside the support, found without sampling (priors may be improper)."""
    if not is_latent(site):
        return None
    shape = site["fn"].shape(site["kwargs"].get("sample_shape", ()))
    if is_discrete(site):
        return jnp.broadcast_to(choices(site)[0], shape)
    try:
        transform = biject_to(site["fn"].support)
    except NotImplementedError:
        raise EpviError(
            f"parameter {site['name']!r} has the support {site['fn'].support}, for which NumPyro has no bijection from"
            " unconstrained space: write it as a function of parameters that have one."
        ) from None
    return transform(jnp.zeros(transform.inverse_shape(shape)))


def filled(site: Site) -> Any:
    """A `value_of` for `run`: zeros of the latent site's shape, where only shapes matter."""
    if not is_latent(site):
        return None
    shape = site["fn"].shape(site["kwargs"].get("sample_shape", ()))
    return jnp.zeros(shape, int if is_discrete(site) else float)


def is_latent(site: Site) -> bool:
    """Whether the site is a sample statement without an observed value."""
    return site["type"] == "sample" and not site["is_observed"]


def is_factor(site: Site) -> bool:
    """Whether the site came from `numpyro.factor`."""
    base = site["fn"]
    while hasattr(base, "base_dist"):
        base = base.base_dist
    return isinstance(base, Unit)


def is_discrete(site: Site) -> bool:
    """Whether the site's distribution has a discrete support."""
    support = site["fn"].support
    return support is not None and bool(support.is_discrete)


def choices(site: Site) -> Any:
    """The support of a discrete site's base distribution, (number of values, *event shape)."""
    base = _single(site["fn"])
    if not base.has_enumerate_support:
        raise EpviError(
            f"the discrete parameter {site['name']!r} has infinitely many values, so NumPyro cannot enumerate it:"
            " sum it out by hand and put the result into numpyro.factor."
        )
    values = base.enumerate_support(expand=False)
    return jnp.reshape(values, (values.shape[0], *base.event_shape))


def _single(distribution: Any) -> Any:
    """The base distribution inside `expand`, `to_event` and `mask`."""
    while isinstance(distribution, ExpandedDistribution | Independent | MaskedDistribution):
        distribution = distribution.base_dist
    return distribution


def log_prob(site: Site, sites: ModelTrace) -> Any:
    """The site's log density with masks and scales, but without plates' subsampling scales; of its batch shape."""
    with promotion_allowed():
        intermediates = site.get("intermediates")
        extra = (intermediates,) if intermediates else ()
        value = site["fn"].log_prob(site["value"], *extra)
        scale = 1.0 if site["scale"] is None else site["scale"]
        for frame in site["cond_indep_stack"]:
            scale = scale / sites.plate_scales.get(frame.name, 1.0)
        return value if isinstance(scale, float) and scale == 1.0 else scale * value


def depends(jaxpr: ClosedJaxpr, sources: Sequence[bool]) -> list[bool]:
    """For each output of a jaxpr, whether it depends on any of the marked inputs."""
    reached = []
    for i in range(len(jaxpr.jaxpr.outvars)):
        # Inputs that survive dead-code elimination for this output alone, which also looks inside jit and loops.
        _, used = partial_eval.dce_jaxpr(jaxpr.jaxpr, [i == j for j in range(len(jaxpr.jaxpr.outvars))])
        reached.append(any(a and b for a, b in zip(used, sources, strict=True)))
    return reached


def trace_program(function: Callable, *arguments: Any) -> tuple[ClosedJaxpr, Any]:
    """The jaxpr of a function of the model, and the shapes of its results; tracing errors become an `EpviError`."""
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
    """An exception that the user's own function raised, as an `EpviError` of one line."""
    return EpviError(f"the model raised {type(error).__name__}: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0].rstrip(".")
