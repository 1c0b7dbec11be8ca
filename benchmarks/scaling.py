"""What a fit costs by rows, shards, parameters and groups, beside its peers: one table with targets.

Run: python benchmarks/scaling.py (hours on two cores; --quick with a tenth of the rows; --only shards,rare for some
parts). Needs the extra `bench`. Methods run in turn, in processes of their own; times are medians after a run that
warms up. A line is the time of a fit with epvi's defaults, its ratio to the time beside it, the certificate's verdict,
the worst error of a mean in sds of the reference, and the range of sds relative to the reference's. A target is met if
the ratio is, the verdict is not "do not trust", and all sds are within 3 % of the reference's (beyond three of its
Monte Carlo standard errors). "> 300": a run took longer than the limit; "cold": the first run, with compilation, left
no time for another; a target beside a cold run is open.

shards    1,000,000 x 18 independent columns in 2 to 1,000 shards
rare      indicators of categories with shares from 20 % down to 0.01 %
wide      100 to 1,000 columns
groups    200 to 10,000 centred group intercepts
crossed   intercepts and slopes of two crossed factors
tall      5,000,000 x 18: first round, passes of two workers, 20 shards by the paper's clock
demo      six shards of 1,000 rows: warm, and the first call of a fresh process
memory    peak of the caller and its workers
growth    exponents of time in rows, shards, columns and groups
paper     the paper's source analysis by its clock (paper_clock.py, if it is there)
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from scaling_parts import PARTS, Plan
from scaling_race import failures
from scaling_table import Line, as_text, write

PAPER = "paper"
_PAPER_CLOCK = Path(__file__).with_name("paper_clock.py")


def paper(plan: Plan) -> None:
    """Another benchmark with a table of its own."""
    if not _PAPER_CLOCK.exists():
        print(f"{_PAPER_CLOCK.name} is not there")
        return
    command = [sys.executable, str(_PAPER_CLOCK), *(["--quick"] if plan.scale < 1 else [])]
    print(f"{_PAPER_CLOCK.name} ended with code {subprocess.run(command).returncode}")


def names(text: str) -> list[str]:
    """Parts by their names, separated by commas."""
    chosen = text.split(",")
    for name in chosen:
        if name not in (*PARTS, PAPER):
            raise argparse.ArgumentTypeError(f"there is no part {name!r}: choose from {', '.join((*PARTS, PAPER))}")
    return chosen


def main(arguments: Sequence[str] | None = None, report: Callable[[str], object] = print) -> list[Line]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=names, default=[*PARTS, PAPER], help="parts, separated by commas")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--scale", type=float, help="another share of the rows")
    parser.add_argument("--repeats", type=int, default=3, help="rounds after the one that warms up")
    parser.add_argument(
        "--limit", type=float, default=300, help="seconds for one method of a line, all rounds together"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the rows and the fits")
    parser.add_argument("--output", type=Path, help="write the table to this CSV file")
    chosen = parser.parse_args(arguments)
    plan = Plan(chosen.scale or (0.1 if chosen.quick else 1.0), chosen.repeats, chosen.limit, chosen.seed)
    lines: list[Line] = []
    print(f"{os.cpu_count()} cores, {plan.scale:g} of the rows, medians of {plan.repeats}, limit {plan.limit:g} s")
    for part in chosen.only:
        start, before = time.perf_counter(), set(plan.found)
        if part == PAPER:
            paper(plan)
            continue
        made = PARTS[part](plan)
        lines += made
        report(f"\n{as_text(made)}" if made else f"\n{part}: no size of it fits this many rows")
        new = {racer: result for racer, result in plan.found.items() if racer not in before}
        print("\n".join([*plan.notes, *failures(new)]))
        plan.notes.clear()
        print(f"({part}: {time.perf_counter() - start:.0f} s)", flush=True)
        if chosen.output:
            write(lines, chosen.output)
    print(f"\n{as_text(lines)}")
    return lines


if __name__ == "__main__":
    main()
