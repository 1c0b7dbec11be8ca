"""What precisions of diagonal plus low-rank structure lose: their marginal sds, relative to the exact ones.

Run: python benchmarks/low_rank.py [--quick] [--seed 0]

The curvature of a logistic regression with ten rows per parameter is approximated by its principal factors (iterated,
on the scale of a unit diagonal) plus a diagonal. A cell has the smallest and the largest ratio of an sd to the exact
one.
"""

import argparse

import numpy as np

RANKS = (20, 100)


def columns(num_rows: int, d: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The kinds of columns by name."""
    noise = rng.normal(size=(num_rows, d))
    walk = noise.copy()
    for j in range(1, d):
        walk[:, j] = 0.9 * walk[:, j - 1] + np.sqrt(1 - 0.9**2) * noise[:, j]
    factors = 0.5 * rng.normal(size=(num_rows, 5)) @ rng.normal(size=(5, d)) + noise
    num_levels = d // 8
    one_hot = np.eye(num_levels)[rng.integers(0, num_levels, size=num_rows)]
    mixed = np.concatenate([one_hot, noise[:, num_levels:]], axis=1)
    return {"independent": noise, "AR(0.9)": walk, "five factors plus noise": factors, "one eighth one-hot": mixed}


def curvature(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """That of a logistic regression with standard normal priors, at coefficients that give logits with an sd of 2."""
    w = rng.normal(size=x.shape[1])
    eta = x @ w
    eta *= 2 / np.std(eta)
    return (x.T / (2 + np.exp(eta) + np.exp(-eta))) @ x + np.eye(x.shape[1])


def ratios(precision: np.ndarray, rank: int, iterations: int) -> np.ndarray:
    """The sds of the approximation relative to the exact ones."""
    units = np.sqrt(np.diag(precision))
    scaled, own = precision / units[:, None] / units, np.full(len(units), 0.5)
    parts = np.zeros((len(units), rank))
    for _ in range(iterations):
        values, vectors = np.linalg.eigh(scaled - np.diag(own))
        parts = vectors[:, -rank:] * np.sqrt(np.maximum(values[-rank:], 0))
        # A diagonal that leaves something of every parameter to itself.
        own = np.maximum(1 - np.sum(parts**2, axis=1), 1e-3)
    made = parts @ parts.T + np.diag(own)
    return np.sqrt(np.diag(np.linalg.inv(made)) / np.diag(np.linalg.inv(scaled)))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    d, iterations = (80, 3) if given.quick else (800, 10)
    rng = np.random.default_rng(given.seed)
    print(f"| {10 * d:,} rows x {d} | {' | '.join(f'rank {rank}' for rank in RANKS)} |")
    print("|---" * (1 + len(RANKS)) + "|")
    for name, x in columns(10 * d, d, rng).items():
        precision = curvature(x, rng)
        found = [ratios(precision, min(rank, d // 2), iterations) for rank in RANKS]
        print(f"| {name} | {' | '.join(f'{np.min(one):.2f} to {np.max(one):.2f}' for one in found)} |", flush=True)


if __name__ == "__main__":
    main()
