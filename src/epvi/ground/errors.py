"""The one exception that epvi raises for a caller's mistake or a refusal; its text says what to do."""

from epvi.ground.printable import shown


class EpviError(ValueError):
    """Bad input, or a refusal: one sentence with what is wrong and the remedy.

    It may name files, columns and cells from elsewhere, so that it holds nothing but printable characters.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(shown(sentence))

    @property
    def clause(self) -> str:
        """What it says without its full stop, for a sentence that goes on."""
        return str(self).rstrip(".")
