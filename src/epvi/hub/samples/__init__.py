"""Combine draws of subposteriors, from any sampler, into draws of the full posterior: one file per method."""
