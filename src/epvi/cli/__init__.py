"""The command line: one file per verb. Results go to stdout; progress, the log and refusals to stderr.

Exit codes: 0 done, 1 refused with a reason, 2 wrong usage, 3 not to be trusted (`certify --strict`), 130 interrupted.
What a verb computes with is imported only when the verb runs, so that help and completion answer at once.
"""

from epvi.cli.group import main

__all__ = ["main"]
