"""Whether a result can be used as it is, in one sentence that says what to do when it cannot."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Status:
    """Whether the result can be used as it is; when not, `text` says what to do."""

    ok: bool
    text: str

    def __str__(self) -> str:
        return self.text
