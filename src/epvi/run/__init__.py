"""The whole job on one machine or executor: shards, rounds, progress, and work folders."""
