"""The posterior of all rows: combining, summaries, exports and its file."""
