"""Copy the results of `make reproduce` into the docs: figures to docs/images/study, claims to experiments/README.md.

Run: python experiments/publish.py [--out reproduced/quick]   (after `make reproduce`)
"""

import argparse
import os
import shutil
from pathlib import Path

from lab import ROOT

IMAGES = ROOT / "docs" / "images" / "study"
PAGE = ROOT / "experiments" / "README.md"
BEGIN, END = "<!-- claims -->\n", "<!-- end of claims -->\n"


def with_claims(page: str, claims: str) -> str:
    """The page with this table between its two markers."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}{claims}{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "reproduced" / "quick", help="folder with figures and claims"
    )
    folder = parser.parse_args().out
    IMAGES.mkdir(parents=True, exist_ok=True)
    for picture in sorted(folder.glob("*.png")):
        shutil.copyfile(picture, IMAGES / picture.name)
        print(f"docs/images/study/{picture.name}")
    part = PAGE.with_suffix(".part")
    part.write_text(with_claims(PAGE.read_text(), (folder / "claims.md").read_text()))
    os.replace(part, PAGE)
    print("experiments/README.md")


if __name__ == "__main__":
    main()
