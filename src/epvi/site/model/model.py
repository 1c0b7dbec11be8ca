"""`Model`: wraps a NumPyro function, or two log densities, and gives log prior(θ) and log likelihood(θ, block) on ℝᵈ.

Takes the user's functions; `Model.on(rows)` gives the `Target` that inference works with. Latent sample statements
are prior terms; observed ones and factors are likelihood terms if they depend on the rows, otherwise prior terms.
"""

import copy
import functools
import inspect
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints
from numpyro.distributions.distribution import MaskedDistribution

from epvi.ground.compiled import rename
from epvi.ground.errors import EpviError
from epvi.ground.float64 import promotion_allowed
from epvi.parameters.space import Parameter, Space
from epvi.site.model.declaration import checked_groups, refuse_groups
from epvi.site.model.example_runs import FEW, MANY, take
from epvi.site.model.inspection import Inspection, inspect_model
from epvi.site.model.likeness import likeness
from epvi.site.model.target import Block, Target
from epvi.site.model.tracing import log_prob, trace_program


class Model:
    """A NumPyro model function whose arguments are columns of the rows, or `fixed` values passed by keyword.

    An argument without a default must be a column; one that defaults to None may be missing from the rows (the observed
    column, which `predict` does not need). `exchangeable` names groups of parameters whose leading axes may be permuted
    together without changing the model ("name@1" stands for the next axis); subposteriors are then aligned before they
    are multiplied. By default such groups are looked for; with `exchangeable=[]` none is aligned.

    `groups="hospital"` names the column of groups whose effects stay where their rows are: epvi gives the function the
    argument `hospital` as the number of each row's group (from 0, whatever the column holds) and `num_hospital` as the
    number of groups. Latents with an axis of that length are integrated out, group by group; fits are of the others.
    """

    # The column of groups whose effects are integrated out at the site; None if there is none.
    groups: str | None = None
    # Key of this model's compiled programs in `ground.compiled`; None before first use.
    _key: Hashable | None = None
    # Predictive quantities at draws of θ: assigned in site/tasks/predictive.py, a higher layer.
    replies: ClassVar[Callable[..., dict[str, dict[str, np.ndarray]]]]
    # The effects of the groups of a site: assigned in site/tasks/group_summary.py.
    group_summary: ClassVar[Callable[..., Any]]

    def __init__(
        self,
        function: Callable,
        *,
        exchangeable: Sequence[Sequence[str]] | None = None,
        groups: str | None = None,
        **fixed: Any,
    ) -> None:
        if not callable(function):
            raise EpviError(f"the model is a {type(function).__name__}: pass a NumPyro model function.")
        self.function = function
        self.fixed = fixed
        self.exchangeable = _groups(exchangeable)
        self.name = getattr(function, "__name__", type(function).__name__)
        try:
            self._arguments = inspect.signature(function).parameters
        except (TypeError, ValueError):
            raise EpviError(f"the signature of {self.name} is not known: pass a plain Python function.") from None
        unknown = [name for name in fixed if name not in self._arguments and not self._takes_anything]
        if unknown:
            raise EpviError(f"{self.name} has no argument {unknown[0]!r}: it takes {', '.join(self._arguments)}.")
        if groups is not None:
            self.groups = checked_groups(self.name, self._arguments, fixed, groups)

    def with_groups(self, num_groups: int) -> "Model":
        """The same model for rows with so many groups, whose effects are parameters like the others."""
        if self.groups is None:
            return self
        made = self.with_fixed({f"num_{self.groups}": num_groups})
        made.groups = None
        return made

    def with_fixed(self, fixed: Mapping[str, Any]) -> "Model":
        """The same model with these arguments fixed, too."""
        made = copy.copy(self)
        made.fixed, made._key = {**self.fixed, **fixed}, None
        return made

    @staticmethod
    def from_log_density(
        log_prior: Callable[[dict[str, Any]], Any],
        log_likelihood: Callable[[dict[str, Any], dict[str, Any]], Any],
        parameters: Mapping[str, Sequence[int] | int],
        *,
        supports: Mapping[str, Any] | None = None,
        exchangeable: Sequence[Sequence[str]] | None = None,
    ) -> "DensityModel":
        """A model from two plain JAX functions.

        `log_prior(values) -> ()` and `log_likelihood(values, block) -> (n,)` take the parameters as a dict of
        constrained values; `parameters` gives their shapes and `supports` the NumPyro constraints of those that are
        not real. The log-Jacobian of the constraints is added automatically.
        """
        return DensityModel(log_prior, log_likelihood, parameters, supports or {}, exchangeable)

    def __repr__(self) -> str:
        return f"Model({self.name})"

    @property
    def _takes_anything(self) -> bool:
        return any(argument.kind is argument.VAR_KEYWORD for argument in self._arguments.values())

    def takes(self, name: str) -> bool:
        """Whether the model has an argument of this name that is not fixed."""
        given = {*self.fixed, f"num_{self.groups}"} if self.groups else self.fixed
        return name not in given and (name in self._named() or self._takes_anything)

    @property
    def optional(self) -> list[str]:
        """Names of the arguments that default to None, which the rows need not have."""
        return [name for name in self._named() if self._arguments[name].default is None]

    def _named(self) -> list[str]:
        kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        given = {*self.fixed, f"num_{self.groups}"} if self.groups else self.fixed
        return [name for name, a in self._arguments.items() if name not in given and a.kind not in kinds]

    def columns(self, names: Sequence[str]) -> None:
        """Refuse columns that are not arguments, and required arguments without a column."""
        takes = self._named()
        for name in names:
            if not self.takes(name):
                fixed = ", which is fixed" if name in self.fixed else ""
                raise EpviError(
                    f"column {name!r} is not an argument of {self.name}{fixed}: its columns are {', '.join(takes)}."
                    " Choose what they are made of, as in epvi.Rows(..., x=[...], y=...) or --x and --y."
                )
        for name in takes:
            needed = self._arguments[name].default is inspect.Parameter.empty
            if needed and name not in names:
                raise EpviError(
                    f"{self.name} needs a column {name!r}, which the rows do not have"
                    f" (they have {', '.join(names) or 'none'}): add it, or fix it with Model({self.name}, {name}=...)"
                    f" or --set {name}=VALUE."
                )

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the signature and the key of compiled programs, which the unpickled model computes anew."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_arguments", "_key")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if "function" in state:
            self._arguments = inspect.signature(self.function).parameters

    def shared_key(self) -> Hashable:
        """The key of this model's compiled programs, which models with equal content share.

        If the model's content has changed since first use (a global that it refers to, say), it keeps its programs, as
        a user of one `Model` expects, but no longer shares them: they may mix the old content with the new.
        """
        now = likeness(self.parts())
        if self._key is None:
            self._key = now or object()
        elif isinstance(self._key, bytes) and self._key != now:
            alone = object()
            rename(self._key, alone)
            self._key = alone
        return self._key

    def content(self) -> bytes | None:
        """A hash of everything that defines the model, the same in all processes; None if there is none."""
        return likeness(self.parts(), in_one_process=False)

    def declared(self, groups: tuple[tuple[str, ...], ...]) -> "Model":
        """The same model with these groups declared exchangeable."""
        made = copy.copy(self)
        made.exchangeable, made._key = groups, None
        return made

    def parts(self) -> tuple:
        """Everything that defines the model, for its hash."""
        return self.function, self.fixed, self.exchangeable or ()

    def on(self, rows: Mapping[str, np.ndarray]) -> Target:
        """The target for rows with these columns; traces the model on the first rows."""
        refuse_groups(self.name, self.groups)
        self.columns(list(rows))
        found = inspect_model(self.function, self.fixed, rows, self.exchangeable or ())
        return Target(
            found.space,
            functools.partial(_log_prior, self.function, found, MANY),
            functools.partial(_log_prior, self.function, found, FEW),
            functools.partial(_log_likelihood, self.function, found),
            None if found.table is None else functools.partial(_log_joint, self.function, found),
            functools.partial(_outside, self.function, found),
            found.terms,
            found.proper,
        )


class DensityModel(Model):
    """A model given by a log prior and a log likelihood; made by `Model.from_log_density`."""

    def __init__(
        self,
        log_prior: Callable,
        log_likelihood: Callable,
        parameters: Mapping[str, Sequence[int] | int],
        supports: Mapping[str, Any],
        exchangeable: Sequence[Sequence[str]] | None,
    ) -> None:
        if not callable(log_prior) or not callable(log_likelihood):
            raise EpviError("log_prior and log_likelihood must be functions of a dict of parameter values.")
        if not parameters:
            raise EpviError('parameters is empty: name at least one with its shape, as in {"w": (3,), "scale": ()}.')
        if not isinstance(parameters, Mapping):
            raise EpviError(f"parameters is a {type(parameters).__name__}: pass a mapping of shapes.")
        unknown = [name for name in supports if name not in parameters]
        if unknown:
            raise EpviError(f"supports names {unknown[0]!r}, which is not among the parameters.")
        self.name = getattr(log_likelihood, "__name__", "model")
        self.fixed = {}
        self._prior, self._likelihood = log_prior, log_likelihood
        listed = []
        for name, shape in parameters.items():
            listed.append(_declared(name, shape, supports.get(name, constraints.real)))
        self._parameters = tuple(listed)
        self.exchangeable = _groups(exchangeable)
        self._space()

    def _space(self) -> Space:
        return Space(self._parameters, self.exchangeable or ())

    def takes(self, name: str) -> bool:
        """Always: plain functions take the whole block of columns."""
        return True

    def columns(self, names: Sequence[str]) -> None:
        """Accept all columns: plain functions take the whole block."""

    def parts(self) -> tuple:
        """Everything that defines the model, for its hash."""
        declared = [(p.name, p.shape, p.support) for p in self._parameters]
        return self._prior, self._likelihood, declared, self.exchangeable or ()

    def on(self, rows: Mapping[str, np.ndarray]) -> Target:
        """The target for rows with these columns; checks the shapes that the two functions give."""
        space = self._space()

        def log_prior(theta: Any) -> Any:
            with promotion_allowed():
                return jnp.asarray(self._prior(space.values(theta))) + space.log_jacobian(theta)

        def log_likelihood(theta: Any, block: Block) -> Any:
            with promotion_allowed():
                return jnp.asarray(self._likelihood(space.values(theta), dict(block)))

        theta = jax.ShapeDtypeStruct((space.dim,), np.float64)
        with jax.enable_x64(True):
            _, prior = trace_program(log_prior, theta)
            if prior.shape != ():
                raise EpviError(f"log_prior gives shape {prior.shape}: it must give one number.")
            for n in (FEW, MANY):
                _, likelihood = trace_program(log_likelihood, theta, take(rows, n))
                if likelihood.shape != (n,):
                    raise EpviError(
                        f"log_likelihood gives shape {likelihood.shape} for {n} rows: it must give one number per row,"
                        f" {(n,)}."
                    )
        return Target(space, log_prior, log_prior, log_likelihood, None, lambda block: {})


def _groups(exchangeable: Any) -> tuple[tuple[str, ...], ...] | None:
    """The declared groups; None if nothing is declared."""
    if exchangeable is None:
        return None
    if isinstance(exchangeable, str) or any(isinstance(group, str) for group in exchangeable):
        raise EpviError(f'exchangeable is {exchangeable!r}: pass groups of names, as in [("weights", "centres")].')
    return tuple(tuple(group) for group in exchangeable)


def _declared(name: str, shape: Any, support: Any) -> Parameter:
    """A declared parameter, after checking that its shape fits its support."""
    try:
        sizes = tuple(operator.index(size) for size in (shape if np.ndim(shape) else (shape,)))
        if isinstance(shape, str) or min(sizes, default=0) < 0:
            raise TypeError
    except TypeError:
        raise EpviError(f"the shape of {name!r} is {shape!r}: pass a whole number or a tuple of them.") from None
    parameter = Parameter(name, sizes, support)
    try:
        with jax.enable_x64(True), promotion_allowed():
            fits = parameter.transform(jnp.zeros(parameter.flat_shape)).shape == sizes
    except NotImplementedError:
        raise EpviError(
            f"{name!r} has the support {support}, for which NumPyro has no bijection: write it as a function of"
            " parameters that have one."
        ) from None
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise EpviError(f"{name!r} of shape {sizes} does not fit its support {support}: change one of them.")
    return parameter


def _log_prior(function: Callable, found: Inspection, num_rows: int, theta: Any) -> Any:
    """The sum of log p over the prior sites, plus the log-Jacobian of the constraints."""
    example = {name: column[:num_rows] for name, column in found.example.items()}
    sites = found.sites(function, found.space.values(theta), example)
    terms = [jnp.sum(log_prob(sites.by_name[name], sites)) for name in found.prior_sites]
    with promotion_allowed():
        return functools.reduce(jnp.add, terms, found.space.log_jacobian(theta))


def _log_likelihood(function: Callable, found: Inspection, theta: Any, block: Block) -> Any:
    """The sum of log p over the likelihood sites, one value per row."""
    values = found.space.values(theta)
    return (found.per_row if found.table is None else found.summed_out)(function, values, block)


def _log_joint(function: Callable, found: Inspection, theta: Any, block: Block, draw: Any) -> Any:
    """The joint log density of each row and one combination of its discrete values, chosen by `draw` in (0, 1)."""
    assert found.table is not None
    which = (draw * len(next(iter(found.table.values())))).astype(int)
    return found.joint(function, found.space.values(theta), block, which)


def _outside(function: Callable, found: Inspection, block: Block) -> dict[str, Any]:
    """Mask of the rows with an observed value outside its distribution's support, by column or NumPyro site."""
    sites = found.sites(function, found.space.values(jnp.zeros(found.space.dim)), block)
    bad = {}
    for name, (label, axis) in found.supported.items():
        site = sites.by_name[name]
        try:
            with promotion_allowed():
                inside = jnp.asarray(site["fn"].support(site["value"]))
                if isinstance(site["fn"], MaskedDistribution):
                    inside = inside | ~jnp.asarray(site["fn"]._mask)
                inside = jnp.broadcast_to(inside, jnp.broadcast_shapes(inside.shape, site["fn"].batch_shape))
        except NotImplementedError:
            continue
        bad[label] = ~jnp.all(inside, axis=tuple(i for i in range(inside.ndim) if i != axis))
    return bad
