"""Everything that sites and hub exchange, and its file format, which is safe to read from untrusted sources."""
