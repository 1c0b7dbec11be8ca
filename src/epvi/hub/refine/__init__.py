"""Refinement rounds: natural-gradient steps on the ELBO of all rows."""
