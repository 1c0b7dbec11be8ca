"""What every other room stands on: errors, validation, float64, seeds, files written whole, text that terminals can show."""
