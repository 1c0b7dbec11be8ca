"""What is packed is what the tests need, and what pyproject.toml promises of other packages is what is tested."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from lowest import TOOLS, lowest

import epvi

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
# What hatchling packs without being told.
ALWAYS = {".gitignore", "pyproject.toml"}


def test_all_that_is_in_the_repository_is_in_the_sdist():
    included = PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert all(name.startswith("/") and (ROOT / name[1:]).exists() for name in included)
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout: this is the sdist itself")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    tops = {line.partition("/")[0] for line in listed.splitlines()}
    assert tops == {name[1:] for name in included} | ALWAYS


def test_the_version_is_that_of_the_citation_and_of_the_newest_dated_changes():
    newest = re.search(
        r"^## (\d+\.\d+\.\d+) \((\d{4}-\d\d-\d\d)\)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE
    )
    cited = dict(
        re.findall(r"^(version|date-released): \"?([^\"\n]+)", (ROOT / "CITATION.cff").read_text(), flags=re.MULTILINE)
    )
    assert newest.groups() == (epvi.__version__, cited["date-released"])
    assert cited["version"] == epvi.__version__


def test_every_commit_runs_what_make_check_runs():
    (recipe,) = re.findall(r"^check:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    commands = [line.strip().replace("$(RUN)", ".venv/bin") for line in recipe.splitlines()]
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"^ +entry: (.+)$", hooks, flags=re.MULTILINE) == commands


def test_the_lowest_versions_are_those_of_pyproject(tmp_path):
    found = lowest(ROOT / "pyproject.toml")
    project = PYPROJECT["project"]
    for line in project["dependencies"]:
        name, version = line.split(">=")
        assert next(one for one in found if one.startswith((f"{name}==", f"{name}["))).endswith(f"=={version}")
    names = {one.partition("==")[0].partition("[")[0] for one in found}
    assert {"distributed", "pandas", "polars", "arviz-base", "pytest"} <= names
    assert not names & TOOLS
    assert len(names) == len(found)


def test_a_dependency_without_a_lowest_version_is_refused(tmp_path):
    file = tmp_path / "pyproject.toml"
    file.write_text('[project]\ndependencies = ["jax"]\noptional-dependencies = { dev = [] }\n')
    with pytest.raises(SystemExit, match=r"'jax' in .* does not say its lowest version"):
        lowest(file)
