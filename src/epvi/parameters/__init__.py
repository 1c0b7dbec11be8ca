"""Parameter names, shapes and constraints, and the alignment of exchangeable parameters."""
