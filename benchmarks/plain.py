"""A plain implementation of the paper's product formulas: NumPy vectors, Python loops, O(dM) per component.

Spherical components only, as in the paper. It is the baseline of `products.py`, and is tested against epvi.
"""

import itertools

import numpy as np

LOG_2PI = np.log(2 * np.pi)

# means (M, K, d), variances (M, K): the shards' fits, equally weighted components.
Shards = tuple[np.ndarray, np.ndarray]


def component(shards: Shards, index: tuple[int, ...] | np.ndarray) -> tuple[float, np.ndarray, float]:
    """log w_k·, μ_k· and σ²_k· of one index vector (the paper's equations 6-8)."""
    means, variances = shards
    d = means.shape[2]
    precision, weighted = 0.0, np.zeros(d)
    for m, k in enumerate(index):
        precision += 1 / variances[m, k]
        weighted = weighted + means[m, k] / variances[m, k]
    variance = 1 / precision
    mean = variance * weighted
    log_w = 0.5 * d * (LOG_2PI + np.log(variance))
    for m, k in enumerate(index):
        difference = means[m, k] - mean
        log_w -= 0.5 * (difference @ difference) / variances[m, k] + 0.5 * d * (LOG_2PI + np.log(variances[m, k]))
    return log_w, mean, variance


def chain(shards: Shards, num_samples: int, burn_in: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The paper's Algorithm 2; `burn_in` counts steps."""
    m, k, d = shards[0].shape
    rng = np.random.default_rng(seed)
    index = rng.integers(k, size=m)
    log_w, mean, variance = component(shards, index)
    means, variances = np.empty((num_samples, d)), np.empty(num_samples)
    for step in range(burn_in + num_samples):
        proposal = index.copy()
        proposal[rng.integers(m)] = rng.integers(k)
        new = component(shards, proposal)
        if np.log(rng.uniform()) < new[0] - log_w:
            index, (log_w, mean, variance) = proposal, new
        if step >= burn_in:
            means[step - burn_in], variances[step - burn_in] = mean, variance
    return means, variances


def exact(shards: Shards, limit: int | None = None) -> list[tuple[float, np.ndarray, float]]:
    """All K^M components one after the other, or the first `limit` of them."""
    m, k, _ = shards[0].shape
    every = itertools.product(range(k), repeat=m)
    return [component(shards, index) for index in itertools.islice(every, limit)]


def exact_vectorised(shards: Shards) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All K^M components at once: the same formulas on arrays (K^M, d), shard after shard."""
    means, variances = shards
    m, k, d = means.shape
    index = np.indices((k,) * m).reshape(m, -1)
    precision, weighted = np.zeros(index.shape[1]), np.zeros((index.shape[1], d))
    for shard in range(m):
        chosen = variances[shard, index[shard]]
        precision += 1 / chosen
        weighted += means[shard, index[shard]] / chosen[:, None]
    variance = 1 / precision
    mean = variance[:, None] * weighted
    log_w = 0.5 * d * (LOG_2PI + np.log(variance))
    for shard in range(m):
        chosen = variances[shard, index[shard]]
        difference = means[shard, index[shard]] - mean
        log_w -= 0.5 * np.sum(difference**2, axis=1) / chosen + 0.5 * d * (LOG_2PI + np.log(chosen))
    return log_w, mean, variance
