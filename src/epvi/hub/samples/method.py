"""What a way to combine draws is: it takes the shards' draws as flat arrays, and gives draws of their product."""

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
    """The draws of M shards, (n_m, d) each, checked."""

    theta: tuple[Float[np.ndarray, "_ d"], ...]
    layout: Layout

    @property
    def counts(self) -> tuple[int, ...]:
        """How many draws each shard has."""
        return tuple(len(draws) for draws in self.theta)

    @property
    def dim(self) -> int:
        """The dimension d of θ."""
        return self.theta[0].shape[1]


class Combination(NamedTuple):
    """Draws of the product, whether they can be used as they are, and the way's own record."""

    theta: Float[np.ndarray, "R d"]
    status: Status
    diagnostics: Any


class Remedies(NamedTuple):
    """What a way advises besides more draws: for other shapes than Gaussians, many dimensions, and few draws."""

    shape: str = "use Semiparametric() or Weierstrass()"
    dimensions: str = ", or choose a diagonal covariance"
    few: str = ", or use a method that assumes more, such as Parametric()"


@dataclasses.dataclass(frozen=True)
class DrawsMethod(abc.ABC):
    """A way to combine draws: a small object that holds its settings.

    `full_prior` says that every shard's draws count the whole prior, so that their product is not the posterior.
    """

    remedies: ClassVar[Remedies] = Remedies()
    full_prior: ClassVar[bool] = False

    @abc.abstractmethod
    def combine(self, shards: Shards, num_samples: int | None, key: jax.Array) -> Combination:
        """Draws of the product of two or more shards, as many as the smallest has when `num_samples` is None."""


METHODS: Registry[DrawsMethod] = Registry("method of combining draws")


def generator(key: jax.Array) -> np.random.Generator:
    """NumPy's generator for a JAX key."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())


def check_covariance(covariance: Any) -> None:
    """Refuse what is no covariance structure."""
    if not isinstance(covariance, Structure):
        raise EpviError(f"covariance is {covariance!r}: pass Full() or Diagonal(), with its brackets.")


def positive(name: str, value: Any, below: float = np.inf) -> float:
    """A positive number, below `below`."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value < below:
        bound = "a finite positive number" if below == np.inf else f"a number between 0 and {below:g}"
        raise EpviError(f"{name} is {value!r}: pass {bound}.")
    return float(value)
