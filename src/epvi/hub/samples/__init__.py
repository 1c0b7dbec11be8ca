"""Draws of shards, from any sampler, combined into draws of the posterior of all rows; one file per method."""
