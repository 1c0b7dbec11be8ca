"""Reads rows: description, sources, chunks, validation, coding, and the split into shards."""
