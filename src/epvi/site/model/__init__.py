"""Turns a NumPyro model, or two log densities, into a `Target`: log prior(θ) and log likelihood(θ, rows)."""
