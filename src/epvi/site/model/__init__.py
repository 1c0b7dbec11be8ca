"""A NumPyro function, or two log densities, becomes a target: log prior(θ) and log likelihood(θ, rows)."""
