"""What every other room stands on: errors, validation, float64, seeds, atomic files, printable text."""
