"""Gaussian mixtures and their covariance structures; only this package knows how a covariance matrix is stored."""
