"""Base class of the methods that combine draws, `DrawsMethod`, with their input and output types."""

import abc
import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from epvi.gaussian.structure import Structure
from epvi.ground.errors import EpviError
from epvi.ground.registry import Registry
from epvi.ground.status import Status
from epvi.hub.samples.layout import Layout


@dataclasses.dataclass(frozen=True, eq=False)
class Shards:
    """The draws of M shards, (n_m, d) each, already checked."""

    theta: tuple[Float[np.ndarray, "_ d"], ...]
    layout: Layout

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of draws of each shard."""
        return tuple(len(draws) for draws in self.theta)

    @property
    def dim(self) -> int:
        """The dimension d of θ."""
        return self.theta[0].shape[1]


class Combination(NamedTuple):
    """What a method returns."""

    theta: Float[np.ndarray, "R d"]  # draws of the product
    status: Status  # whether they can be used as they are
    diagnostics: Any  # the method's own record


class Remedies(NamedTuple):
    """What a method's status advises, besides more draws."""

    shape: str = "use Semiparametric() or Weierstrass()"  # for shards that are not Gaussian
    dimensions: str = ", or choose a diagonal covariance"  # for a covariance with many dimensions
    few: str = ", or use a method that assumes more, such as Parametric()"  # for a large Monte Carlo error


@dataclasses.dataclass(frozen=True)
class DrawsMethod(abc.ABC):
    """Base class of methods that combine draws: small immutable objects that hold their settings.

    `full_prior` is True if every shard's draws contain the full prior, so that their product is not the posterior.
    """

    remedies: ClassVar[Remedies] = Remedies()
    full_prior: ClassVar[bool] = False

    @abc.abstractmethod
    def combine(self, shards: Shards, num_samples: int | None, key: jax.Array) -> Combination:
        """Draws of the product of two or more shards; as many as the smallest shard has if `num_samples` is None."""


METHODS: Registry[DrawsMethod] = Registry("method of combining draws")


def generator(key: jax.Array) -> np.random.Generator:
    """A NumPy generator seeded by a JAX key."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())


def check_covariance(covariance: Any) -> None:
    """Refuse anything but a covariance structure."""
    if not isinstance(covariance, Structure):
        raise EpviError(f"covariance is {covariance!r}: pass Full() or Diagonal(), with its brackets.")


def positive(name: str, value: Any, below: float = np.inf) -> float:
    """`value` as a float; refused unless it is positive and below `below`."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value < below:
        bound = "a finite positive number" if below == np.inf else f"a number between 0 and {below:g}"
        raise EpviError(f"{name} is {value!r}: pass {bound}.")
    return float(value)
