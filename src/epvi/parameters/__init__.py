"""The parameters' names, shapes and constraints, and the order of exchangeable ones."""
