"""Everything that travels between sites and hub, and the one safe file format for it."""
