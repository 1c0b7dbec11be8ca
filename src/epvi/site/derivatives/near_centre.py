"""Log likelihoods of all rows, and their average gradient, at many points near a centre: by products in float32.

Takes a model with linear predictors, rows, a centre c and points θ. Predictors at c are computed in the rows' own
precision, and only what they change by on the way to θ is computed in float32, as is the link:

    η_j(θ) = X_j W_j(c) + X_j (W_j(θ) − W_j(c))

This takes a fraction of the time of float64. How much rounding adds to the sum over all rows is measured on a sample of
them: `rounding` gives its standard deviation, by which the caller decides whether it may be.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from epvi.ground.compiled import Held, kept, number_of
from epvi.ground.float64 import promotion_allowed
from epvi.site.derivatives.cuts import GatherCut
from epvi.site.derivatives.linear_predictors import Predictors
from epvi.site.derivatives.passes import Programs
from epvi.site.derivatives.subposteriors import Subposteriors
from epvi.site.derivatives.through_predictors import Linked

# Points whose predictors are computed in one matrix product. Judgement: enough for it to be fast.
_TOGETHER = 256


class NearCentre(Held):
    """The compiled programs of one model and kind of rows."""

    def __init__(self, programs: Programs, own: Linked, quick: Linked) -> None:
        self._target, self._own, self._quick = programs.target, own, quick
        self._values, self._gradient = jax.jit(self._sums), jax.jit(self._average)
        self._errors = jax.jit(self._differences)

    @property
    def num_programs(self) -> int:
        """The number of compiled programs."""
        return sum(map(number_of, (self._values, self._gradient, self._errors)))

    @property
    def has_gradients(self) -> bool:
        """Whether average gradients can be computed: W_j(θ) only selects coordinates, so that it is linear."""
        return self._quick.places is not None

    def rounding(
        self, each: Subposteriors, centre: Float[np.ndarray, " d"], points: Float[np.ndarray, "S d"], places: np.ndarray
    ) -> float:
        """The sd over points of the rounding error of the sum over all rows, up to a constant, from a window of them.

        Errors that rows have in common grow with the number of rows N, those of each row with its square root.
        """
        block = {name: np.take(each.rows[name], places, axis=0) for name in sorted(each.rows)}
        with jax.enable_x64(True), promotion_allowed():
            errors = np.asarray(self._errors(centre, points, block))
        total, (_, n) = each.windows.num_rows, errors.shape
        errors = errors - np.mean(errors, axis=0)
        alone = float(np.mean(np.var(errors, axis=1, ddof=1)))
        common = max(float(np.var(np.mean(errors, axis=1), ddof=1)) - alone / n, 0.0)
        return float(np.sqrt(total**2 * common + total * alone))

    def values(
        self, each: Subposteriors, centre: Float[np.ndarray, " d"], theta: Float[np.ndarray, "S d"]
    ) -> Float[np.ndarray, "B S"]:
        """log p_m of every shard at the points."""
        count, short = each.num_shards, -len(theta) % _TOGETHER
        filled = np.concatenate([theta, np.repeat(theta[-1:], short, axis=0)]).reshape(-1, _TOGETHER, theta.shape[1])
        sums = self._over_rows(self._values, each, centre, filled)[0][:, : len(theta)]
        prior = each.prior_values(np.tile(theta, (count, 1)), np.repeat(np.arange(count), len(theta)))
        return each.weights[:, None] * sums + prior.reshape(count, -1)

    def with_average_gradients(
        self, each: Subposteriors, centre: Float[np.ndarray, " d"], theta: Float[np.ndarray, "S d"]
    ) -> tuple[Float[np.ndarray, "B S"], Float[np.ndarray, "B d"]]:
        """The same, and the gradients averaged over the points."""
        count, (sums, slopes) = each.num_shards, self._over_rows(self._gradient, each, centre, theta)
        owner, weights = np.repeat(np.arange(count), len(theta)), each.weights[:, None]
        prior = each.prior_values(np.tile(theta, (count, 1)), owner).reshape(count, -1)
        bent = each.prior_gradients(np.tile(theta, (count, 1)), owner).reshape(count, len(theta), -1)
        return weights * sums + prior, weights * slopes + np.mean(bent, axis=1)

    def _over_rows(self, program: Any, each: Subposteriors, centre: np.ndarray, points: np.ndarray) -> list[np.ndarray]:
        """The sums of a program over each shard's rows, of each of its results."""
        windows, made = each.windows, []
        with jax.enable_x64(True), promotion_allowed():
            given = jnp.asarray(centre), jnp.asarray(points)
            for start, stop in zip(windows.bounds, windows.bounds[1:], strict=False):
                total: list[Any] = []
                for first in range(int(start), int(stop), windows.window):
                    weights = (np.arange(windows.window) < stop - first).astype(np.float64)
                    if each.by_row is not None:
                        weights = weights * windows.rows(each.by_row, first)
                    more = program(*given, windows.cut(each.rows, first), weights)
                    total = [a + b for a, b in zip(total, more, strict=True)] if total else list(more)
                made.append([np.asarray(part) for part in total])
        return [np.stack(parts) for parts in zip(*made, strict=True)]

    def _changes(self, found: Predictors, values: Any, point: Any, centre: Any) -> list[Any]:
        """X_j (W_j(θ) − W_j(c)), in float32."""
        made, exact = [], self._own.exact
        matrices = found.matrices(values)
        for j, (cut, w, before) in enumerate(zip(found.cuts, exact.weights(point), exact.weights(centre), strict=True)):
            moved = (w - before).astype(jnp.float32)
            made.append(cut.predictors(values, moved) if isinstance(cut, GatherCut) else matrices[j] @ moved)
        return made

    def _at_centre(self, centre: Any, block: Any) -> list[Any]:
        """X_j W_j(c), in the rows' own precision."""
        found, made = self._own.found, []
        values = found.of_rows(block)
        matrices = found.matrices(values)
        for j, (cut, w) in enumerate(zip(found.cuts, self._own.exact.weights(centre), strict=True)):
            w = w.astype(self._own.dtype)
            own = cut.predictors(values, w) if isinstance(cut, GatherCut) else matrices[j].astype(self._own.dtype) @ w
            made.append(own.astype(jnp.float32))
        return made

    def _rows(self, centre: Any, points: Any, block: Any, more: Any = None) -> Any:
        """The log likelihood of every row at every point, (S, n); `more` is added to predictors and to θ."""
        found, few = self._quick.found, _in_float32(block)
        values, etas = found.of_rows(few), self._at_centre(centre, block)
        if more is not None:
            etas = [eta + shift for eta, shift in zip(etas, more[0], strict=True)]

        def at(point: Any) -> Any:
            theta = point.astype(jnp.float32)
            theta = theta if more is None else theta + more[1]
            changes = self._changes(found, values, point, centre)
            return found.link([eta + change for eta, change in zip(etas, changes, strict=True)], theta, few)

        return jax.vmap(at)(points)

    def _sums(self, centre: Any, points: Any, block: Any, weights: Any) -> Any:
        def some(part: Any) -> Any:
            rows = self._rows(centre, part, block).astype(jnp.float64)
            # `where`, because weight zero times an infinite log likelihood would be NaN.
            return jnp.sum(jnp.where(weights > 0, weights * rows, 0.0), axis=1)

        return (jnp.ravel(jax.lax.map(some, points)),)

    def _average(self, centre: Any, points: Any, block: Any, weights: Any) -> Any:
        """The sums, and their average gradient by shifts of predictors and of θ that all points have in common."""
        own = self._own
        shifts = [jnp.zeros((len(weights), width), jnp.float32) for width in own.found.widths]
        zero = jnp.zeros(points.shape[1], jnp.float32)

        def average(more: Any) -> Any:
            rows = self._rows(centre, points, block, more)
            sums = jnp.sum(jnp.where(weights > 0, weights * rows.astype(jnp.float64), 0.0), axis=1)
            return jnp.mean(sums), sums

        (by_eta, by_theta), sums = jax.grad(average, has_aux=True)((shifts, zero))
        values = own.found.of_rows(block)

        def predicted(theta: Any) -> Any:
            """Σ_j Σ_i η_ij times its derivative, whose gradient in θ is that through the predictors."""
            total, matrices = 0.0, own.found.matrices(values)
            for j, (cut, w, slope) in enumerate(zip(own.found.cuts, own.exact.weights(theta), by_eta, strict=True)):
                slope = slope.astype(own.dtype)
                if isinstance(cut, GatherCut):
                    eta = cut.predictors(values, w.astype(own.dtype))
                    total = total + jnp.sum(eta * slope)
                else:
                    total = total + jnp.sum((matrices[j].astype(own.dtype).T @ slope) * w)
            return total

        return sums, jax.grad(predicted)(centre) + by_theta.astype(jnp.float64)

    def _differences(self, centre: Any, points: Any, block: Any) -> Any:
        """What rounding adds to the log likelihood of every row at every point, (S, n)."""
        exact = {name: x.astype(jnp.float64) if _is_float(x) else x for name, x in block.items()}
        rows = jax.vmap(lambda point: self._target.log_likelihood(point, exact))(points)
        return self._rows(centre, points, block).astype(jnp.float64) - rows


def near_centre(each: Subposteriors) -> NearCentre | None:
    """The programs for the rows of some shards; None if their model has no linear predictors, or many per row."""
    window, programs = each.windows.cut(each.rows, 0), each.programs
    own, quick = programs.linked(window), programs.linked(_in_float32(window))
    if not isinstance(own, Linked) or not isinstance(quick, Linked) or quick.dtype != jnp.float32:
        return None
    if own.found.widths != quick.found.widths or own.found.heights != quick.found.heights:
        return None
    kind = tuple((name, column.shape, column.dtype.str) for name, column in window.items())
    return kept(("near centre", programs, kind), lambda: NearCentre(programs, own, quick))


def _is_float(column: Any) -> bool:
    return np.dtype(column.dtype).kind == "f"


def _in_float32(block: Mapping[str, Any]) -> dict[str, Any]:
    return {name: x.astype(jnp.float32) if _is_float(x) else x for name, x in block.items()}
