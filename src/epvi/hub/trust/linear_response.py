"""What the best Gaussian lacks: means and sds of single parameters by gradients at its draws.

Let q = N(μ, Σ) have the highest ELBO of all Gaussians, r = log p − log q and δ = Σ∇r. E_q ∇r and E_q ∇²r are zero then,
and the series of cumulants (`cumulants.py`) becomes, by Stein's identity,

    Cov_p θ = Σ + E_q δδᵀ + ...,   E_p θ = μ + E_q δ + E_q (r − E r)δ + ½ E_q (r² − E r²)δ + ...

Its next term in Cov_p θ follows from how the mean of the best Gaussian moves when p is multiplied by exp(tᵀθ) (linear
response; Giordano, Broderick & Jordan 2018): in coordinates in which Σ = I it is (I − G)⁻¹ = I + G + G² + ..., with
G = E_q δδᵀ. With Gaussians of many parameters for few rows each G is what variational inference is known to lack: its
sds are too small by d/N or so. Log ratios alone would tell the same with errors that grow with the number of
parameters; gradients tell it of each parameter with a relative error of √(2/R) from R draws. The terms of the means are
small, of either sign, and of similar size: they are not corrected, and their sizes say how far they may be off.
"""

import dataclasses

import numpy as np
from jaxtyping import Float

from epvi.gaussian.mixture import GaussianMixture
from epvi.wire.request import mapped


@dataclasses.dataclass(frozen=True, eq=False)
class Response:
    """How single parameters under p differ from those under the best Gaussian.

    Attributes:
        shifts: the three terms of the change of every mean, in sds of the Gaussian. The first would be zero if the
            Gaussian were the best one for all draws, and not only for those that refined it.
        shift_errors: their standard errors.
        first: relative change of every variance by the first term, the diagonal of G.
        first_error: its standard errors.
        second: the same by the second term, G².
    """

    shifts: Float[np.ndarray, "3 d"]
    shift_errors: Float[np.ndarray, "3 d"]
    first: Float[np.ndarray, " d"]
    first_error: Float[np.ndarray, " d"]
    second: Float[np.ndarray, " d"]

    @property
    def factors(self) -> Float[np.ndarray, " d"]:
        """The factors by which sds are larger than those of the Gaussian."""
        return np.sqrt(np.maximum(1 + self.first + self.second + self._rest, 1.0))

    @property
    def _rest(self) -> Float[np.ndarray, " d"]:
        """All further terms, if each is to the one before it as the second is to the first; infinite if they grow."""
        ratio = np.abs(self.second) / np.maximum(self.first, 1e-300)
        return np.where(ratio < 1, np.abs(self.second) * ratio / np.maximum(1 - ratio, 1e-300), np.inf)

    @property
    def known(self) -> float:
        """How well the factors are known, relatively: two standard errors, and all terms after the first.

        Others of the same order as these, with fourth derivatives, are left out.
        """
        if not np.all(np.isfinite(self._rest)):
            return np.inf
        return float(np.max((2 * self.first_error + np.abs(self.second) + self._rest) / (2 * self.factors**2)))

    def typical_shift(self) -> float:
        """An upper limit of the root mean square, over all parameters, of by how much means are off.

        It is the sum of those of the three terms, each with two standard errors.
        """
        squares, noise = self.shift_errors**2, np.sqrt(2 * np.sum(self.shift_errors**4, axis=1))
        size = np.maximum(np.mean(self.shifts**2 - squares, axis=1), 0.0)
        return float(np.sum(np.sqrt(size + 2 * noise / self.shifts.shape[1])))

    def largest_shift(self) -> float:
        """About how far the worst mean may be off: three times as far as is typical, the fit's own noise included."""
        return 3 * float(np.hypot(self.typical_shift(), np.max(self.shift_errors[0])))


def response_of(
    gaussian: GaussianMixture,
    base: Float[np.ndarray, "R d"],
    values: Float[np.ndarray, " R"],
    slopes: Float[np.ndarray, "R d"],
) -> Response:
    """From log p and its gradients at the base draws z of one Gaussian, which are pairs z, −z."""
    mean, sd, root = np.asarray(gaussian.means)[0], np.asarray(gaussian.sd()), np.asarray(gaussian.roots)[0]
    packing = gaussian.structure.packing
    half = len(base) // 2
    delta = slopes @ np.asarray(gaussian.covariance()) + mapped(gaussian, base)[0] - mean
    ratio = values + 0.5 * np.sum(base**2, axis=1)
    ratio = ratio - np.mean(ratio)
    moved = [factor[:, None] * delta / sd for factor in (np.ones_like(ratio), ratio, 0.5 * (ratio**2 - np.var(ratio)))]
    shifts, shift_errors = np.stack([_mean_of(0.5 * (term[:half] + term[half:])) for term in moved], axis=1)
    delta = delta - np.mean(delta, axis=0)
    # Of a pair the even and the odd part: either is almost the same, or the opposite, at both of its points.
    parts = np.concatenate([delta[:half] + delta[half:], delta[:half] - delta[half:]]) / 2
    first, first_error = _mean_of((parts[:half] ** 2 + parts[half:] ** 2) / sd**2)
    # G² from different pairs, as the square of an average over few draws would be too large.
    white = packing.whiten(root, parts)
    products = white @ white.T
    for i in (0, half):
        for j in (0, half):
            np.fill_diagonal(products[i : i + half, j : j + half], 0.0)
    second = np.sum(parts * (products @ parts), axis=0) / (half * (half - 1)) / sd**2
    return Response(shifts, shift_errors, first, first_error, second)


def _mean_of(values: Float[np.ndarray, "n d"]) -> tuple[np.ndarray, np.ndarray]:
    """The mean, and its standard error."""
    return np.mean(values, axis=0), np.std(values, axis=0, ddof=1) / np.sqrt(len(values))
