"""Rows that stay where they are: fragments looked at, made into shards, and read where they are needed."""
