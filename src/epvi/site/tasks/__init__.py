"""What a site is asked to do: fit a shard, score draws, predict."""
