"""Passes over the rows: values, gradients and Hessians of a subposterior, compiled once per model."""
