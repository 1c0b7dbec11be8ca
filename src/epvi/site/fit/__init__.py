"""Local inference: a mixture of Gaussians fitted to one subposterior."""
