"""Whether fits belong together, and whether the shards agree."""
