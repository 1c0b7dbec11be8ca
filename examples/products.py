"""Six mixtures in two dimensions and their product by each of the four product methods.

Run: python examples/products.py [picture.png]. Draws the mixtures and the products, and prints each method's status.
Every single mixture is vague; their product has one clear mode and a small second one.
"""

import sys
import time
from pathlib import Path

import matplotlib
import numpy as np

import epvi

matplotlib.use("Agg")
import matplotlib.pyplot as plt

# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = ["#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"]
WAYS = {
    "Exact": epvi.Exact(),
    "Chain": epvi.Chain(num_samples=4000),
    "Subset": epvi.Subset(num_samples=500),
    "Anchored": epvi.Anchored(num_samples=2000),
}
GRID = np.stack(np.meshgrid(np.linspace(-4, 4, 161), np.linspace(-4, 4, 161)), axis=-1)


def make_shards(num_shards: int = 6, seed: int = 4) -> list[epvi.GaussianMixture]:
    """Shards with four full-covariance components each: two near each of two points, at random distances."""
    rng = np.random.default_rng(seed)
    places = np.array([[1.3, 0.8], [1.3, 0.8], [-1.5, -0.9], [-1.5, -0.9]])
    shards = []
    for _ in range(num_shards):
        means = places + rng.normal(scale=0.9, size=(4, 2))
        angles = rng.uniform(0, np.pi, 4)
        axes = np.stack([np.cos(angles), np.sin(angles), -np.sin(angles), np.cos(angles)], axis=1).reshape(4, 2, 2)
        widths = np.stack([rng.uniform(1.0, 1.8, 4), rng.uniform(0.5, 0.8, 4)], axis=1) ** 2
        covariances = np.swapaxes(axes, 1, 2) @ (widths[:, :, None] * axes)
        shards.append(epvi.GaussianMixture.from_covariances(means, covariances, rng.dirichlet(np.full(4, 6.0))))
    return shards


def exact_density(shards: list[epvi.GaussianMixture]) -> np.ndarray:
    """The normalised product of the six densities on the grid, which every method should reproduce."""
    log_density = np.sum([shard.log_density(GRID) for shard in shards], axis=0)
    density = np.exp(log_density - log_density.max())
    return density / (density.sum() * (8 / 160) ** 2)


def draw(shards: list[epvi.GaussianMixture], products: dict[str, epvi.ProductMixture], path: Path) -> None:
    figure, panels = plt.subplots(2, 3, figsize=(10.5, 7.6), sharex=True, sharey=True, layout="constrained")
    x, y = GRID[..., 0], GRID[..., 1]
    for shard, colour in zip(shards, COLOURS, strict=True):
        density = shard.density(GRID)
        panels[0, 0].contour(x, y, density, levels=np.array([0.3, 0.8]) * density.max(), colors=colour, linewidths=1.3)
    panels[0, 0].set_title("six shards\nfitted apart: contours of each", fontsize=10)
    truth = exact_density(shards)
    levels = np.array([0.02, 0.1, 0.3, 0.6, 0.9]) * truth.max()
    panels[0, 1].contourf(x, y, truth, levels=[*levels, truth.max()], cmap="cividis")
    panels[0, 1].set_title("the truth\nthe six densities multiplied on a grid", fontsize=10)
    for panel, (name, product) in zip([panels[0, 2], *panels[1]], products.items(), strict=True):
        density = product.mixture.density(GRID)
        panel.contourf(x, y, density, levels=[*levels, max(density.max(), truth.max()) * 1.001], cmap="cividis")
        panel.contour(x, y, truth, levels=levels, colors="white", linewidths=0.5)
        error = 0.5 * np.sum(np.abs(density - truth)) * (8 / 160) ** 2
        components = product.mixture.num_components
        panel.set_title(f"{name}\n{components:,} components, {100 * error:.1f} % of mass misplaced", fontsize=10)
    for panel in panels.flat:
        panel.set_aspect("equal")
        panel.set_xlabel("θ₁")
        panel.set_ylabel("θ₂")
        panel.label_outer()
    figure.suptitle("Six mixtures of Gaussians, and their product by four ways (white lines: the truth)")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "demo.png")
    shards = make_shards()
    print("Six shards, each a mixture of 4 Gaussians in 2 dimensions: the product has 4^6 = 4,096 components.\n")
    products = {}
    for name, way in WAYS.items():
        start = time.perf_counter()
        products[name] = epvi.multiply(shards, way, seed=0)
        seconds = time.perf_counter() - start
        product = products[name]
        mean, sd = product.mixture.mean(), product.mixture.sd()
        print(f"{name:9s} mean ({mean[0]:+.3f}, {mean[1]:+.3f})  sd ({sd[0]:.3f}, {sd[1]:.3f})  {seconds:.1f} s")
        if product.log_normaliser is not None:
            value, error = product.log_normaliser
            known = "exact" if error == 0 else "no standard error" if np.isnan(error) else f"± {error:.4f}"
            print(f"{'':9s} log of the integral {value:.4f} ({known})")
        print(f"{'':9s} {product.status}\n", flush=True)
    draw(shards, products, path)
    print(f"Picture: {path.resolve()}")


if __name__ == "__main__":
    main()
