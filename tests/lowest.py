"""The lowest versions that pyproject.toml allows, as requirements for pip: `make test-lowest` tests with these.

Prints a line for every direct dependency, and for what the tests import beside them. pyproject.toml is the one list:
a dependency there without a lowest version is refused. Needs nothing but Python, since it runs before all is installed.
"""

import re
import sys
import tomllib
from pathlib import Path

# Tools of `make check` and `make coverage`, which no test imports.
TOOLS = {"coverage", "import-linter", "pyright", "ruff"}
_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?P<extras>\[[a-z0-9,_-]+\])?>=(?P<version>[0-9.]+)")


def lowest(pyproject: Path) -> list[str]:
    """Requirements of exactly the lowest versions: of epvi, and of its tests."""
    project = tomllib.loads(pyproject.read_text("utf-8"))["project"]
    made = {}
    for line in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
        found = _REQUIREMENT.fullmatch(line)
        if found is None:
            sys.exit(f"{line!r} in {pyproject} does not say its lowest version: write name>=1.2")
        if found["name"] not in TOOLS:
            # Of a package that is listed twice, the line with extras comes later and holds both.
            made[found["name"]] = f"{found['name']}{found['extras'] or ''}=={found['version']}"
    return sorted(made.values())


if __name__ == "__main__":
    sys.stdout.write("\n".join(lowest(Path(__file__).parents[1] / "pyproject.toml")) + "\n")
