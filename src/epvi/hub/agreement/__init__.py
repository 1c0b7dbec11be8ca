"""Checks that fits can be combined, and tests of whether the shards agree."""
