"""The tasks of a site: fit a shard, evaluate its log density at draws, predict."""
