"""The one exception that epvi raises for a caller's mistake or a refusal; its text says what to do."""


class EpviError(ValueError):
    """Bad input, or a refusal: one sentence with what is wrong and the remedy."""
