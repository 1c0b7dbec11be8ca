"""Gaussian mixtures and their covariance structures; the only room that knows how a covariance is stored."""
