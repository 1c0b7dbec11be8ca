"""The command line: verbs are rooms. Results go to stdout, progress to stderr.

Exit codes: 0 done, 1 refused with a reason, 2 wrong usage, 3 not to be trusted (with `--strict`), 130 interrupted. This
package imports what a verb needs only when the verb runs, so that help and completion answer at once.
"""

from epvi.cli.group import main

__all__ = ["main"]
