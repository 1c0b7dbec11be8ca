"""Products of Gaussian mixtures; one file per method."""
