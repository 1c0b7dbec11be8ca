"""The lowest layer: errors, validation, float64, seeds, atomic writes, compiled programs, printable text."""
