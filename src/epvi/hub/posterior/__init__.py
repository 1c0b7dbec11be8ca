"""The posterior of all rows: combining fits, summaries, exports, and its file format."""
