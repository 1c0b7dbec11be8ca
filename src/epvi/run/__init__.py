"""Run the whole algorithm on one machine or executor: shards, refinement rounds, progress bar, work folders."""
