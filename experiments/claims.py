"""Compare every claim of the paper with the study's tables: a table in Markdown, printed and saved as claims.md.

Run: python experiments/claims.py [--out reproduced/quick]   (after the experiments; `make reproduce` does both)

The bounds in lab/judging.py decide whether a claim holds. A claim whose table is missing or incomplete is reported as
not measured.
"""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from lab import ROOT, judging
from lab.judging import Found
from lab.results import Row, read


class Claim(NamedTuple):
    """A claim of the paper."""

    says: str
    where: str  # section and figure
    script: str  # experiment whose table decides it
    judge: Callable[[list[Row]], Found]


CLAIMS = (
    Claim("over ten times less time than NVI as M grows to 20", "5.1, Fig. 3a", "figure3", judging.faster_with_shards),
    Claim("nearly the same held-out likelihood as NVI", "5.1, Fig. 3a", "figure3", judging.same_loss),
    Claim(
        "nearly tenfold for every K at M = 10, virtually identical likelihood",
        "5.1, Fig. 3b",
        "figure3",
        judging.faster_with_components,
    ),
    Claim("accuracy nearly constant from M = 10 to 200", "5.1, Fig. 3c", "figure3", judging.constant_accuracy),
    Claim("accuracy about 0.7865 on SUSY", "5.1, Fig. 3c", "susy_cv", judging.level_of_accuracy),
    Claim("sampled products have the exact one's likelihood", "5.1, Fig. 4a, c", "figure4", judging.same_as_exact),
    Claim("exact explodes beyond M about 6, K about 4", "5.1, Fig. 4b, d", "figure4", judging.exact_explodes),
    Claim("sample slightly better than subset, also in time", "5.1, Fig. 4", "figure4", judging.sample_beats_subset),
    Claim("TLSA: less time, more so as M grows", "5.2, Fig. 5", "figure5", judging.sources_faster),
    Claim("TLSA: similar likelihood, M, K and L varied", "5.2, Fig. 5", "figure5", judging.sources_alike),
    Claim("exact product: O(dMK^M)", "3.3", "complexity", judging.exact_cost),
    Claim("chain: O(dRM)", "3.3", "complexity", judging.chain_cost),
    Claim("pairs: O(dRM²), O(dR log M) in parallel", "3.3", "complexity", judging.pairs_cost),
    Claim("MK(d+2) scalars are communicated", "3.3", "communication", judging.scalars),
)


def table(folder: Path, seed: int) -> str:
    lines = ["| the paper | where | measured | verdict | `python experiments/` |", "|---|---|---|---|---|"]
    for claim in CLAIMS:
        found = _judged(claim, folder, seed)
        lines.append(f"| {claim.says} | {claim.where} | {found.measured} | {found.verdict} | `{claim.script}.py` |")
    return "\n".join(lines) + "\n"


def _judged(claim: Claim, folder: Path, seed: int) -> Found:
    file = folder / f"{claim.script}.csv"
    if not file.exists():
        return Found("not measured: its rows are not here", "")
    try:
        return claim.judge([row for row in read(file) if row.get("seed") == seed])
    except (LookupError, ValueError):
        return Found("not measured: its table is not complete", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "reproduced" / "quick", help="folder with the tables")
    parser.add_argument("--seed", type=int, default=0)
    said = parser.parse_args()
    text = table(said.out, said.seed)
    part = said.out / "claims.part"
    part.write_text(text)
    os.replace(part, said.out / "claims.md")
    print(text)


if __name__ == "__main__":
    main()
