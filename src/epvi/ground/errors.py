"""`EpviError`, the exception for invalid input and refusals; its message says what to do."""

from epvi.ground.printable import shown


class EpviError(ValueError):
    """Invalid input, or a refusal: one sentence with what is wrong and the remedy.

    The message may quote file names, column names and values from other people, so unprintable characters are replaced.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(shown(sentence))

    @property
    def clause(self) -> str:
        """What it says without its full stop, for a sentence that goes on."""
        return str(self).rstrip(".")
