"""Rows: described, found, read in chunks, checked, coded and dealt to shards."""
