"""Whether a result can be used as it is: a code that programs read, and a sentence that says what to do when it cannot.

Whoever computes something makes its `Status`; nobody else reads the sentence, which may change, to learn what happened.
"""

import dataclasses
import enum


class StatusCode(enum.StrEnum):
    """How a computation ended; `ok` says whether its result can be used as it is."""

    ok: bool

    def __new__(cls, value: str, ok: bool) -> "StatusCode":
        """A code with its verdict."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.ok = ok
        return member

    # A shard's fit. NO_MODE: no climb reached one. CYCLING, SLOWLY_RISING and RISING: the sweeps ran out, the bound
    # repeating itself, rising by little, or by so much that the fit is not one to multiply. INFORMATION: no density of
    # its own, but slope and curvature, which can be multiplied with the fits of other shards.
    CONVERGED = "converged", True
    INFORMATION = "information", False
    FLAT_DIRECTION = "flat-direction", False
    NON_FINITE = "non-finite", False
    NO_MODE = "no-mode", False
    CYCLING = "cycling", True
    SLOWLY_RISING = "slowly-rising", True
    RISING = "rising", False

    # Products of mixtures, and combined draws. EXACT: nothing was approximated. SAMPLED, MIXED, DRAWN: importance
    # samples, Markov chains, and draws of a parametric or accepted kind that their diagnostics find good.
    EXACT = "exact", True
    SAMPLED = "sampled", True
    MIXED = "mixed", True
    DRAWN = "drawn", True
    UNEVEN_WEIGHTS = "uneven-weights", False
    UNMIXED = "unmixed", False
    FEW_EFFECTIVE = "few-effective", False
    FEW_DRAWS = "few-draws", False
    NOT_GAUSSIAN = "not-gaussian", False
    NEGLECTED_CORRELATION = "neglected-correlation", False
    MOVING_TOGETHER = "moving-together", False
    WIDE_KERNEL = "wide-kernel", False
    LITTLE_BEYOND_PRIOR = "little-beyond-prior", False

    # Whether shards agree.
    NOTHING_TO_COMPARE = "nothing-to-compare", True
    AGREEMENT = "agreement", True
    CONFLICT = "conflict", False

    # A posterior. LOOSE_FITS: the product went well, and the shards' fits are far from their subposteriors in all.
    # NEEDS_ROUNDS: some shards gave information instead of a density. UNCONFIRMED: no answers to its last step yet. The
    # others are the certificate's verdicts.
    LOOSE_FITS = "loose-fits", True
    NEEDS_ROUNDS = "needs-rounds", False
    REFINED = "refined", True
    UNCONFIRMED = "unconfirmed", False
    TRUSTED = "trusted", True
    CORRECTED = "corrected", True
    MARGINALS = "marginals", True
    CHAINS = "chains", True
    NOT_TRUSTED = "not-trusted", False

    # Of a file that has no code, or one that this version does not know.
    USABLE = "usable", True
    UNUSABLE = "unusable", False


@dataclasses.dataclass(frozen=True)
class Status:
    """Whether the result can be used as it is; when not, `text` says what to do."""

    code: StatusCode
    text: str

    @property
    def ok(self) -> bool:
        """Whether the result can be used as it is."""
        return self.code.ok

    def followed_by(self, code: StatusCode, clause: str) -> "Status":
        """A status whose text goes on where this one's full stop is."""
        return Status(code, self.text.removesuffix(".") + clause)

    def __str__(self) -> str:
        return self.text
