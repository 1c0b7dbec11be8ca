"""Products of Gaussian mixtures: one file per product method."""
