"""Prose that runs: the README's code, the demo, and what `import epvi` leaves alone."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def code_blocks(path):
    return re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(), flags=re.DOTALL)


def effective(text):
    return float(re.search(r"sampled: (?:about )?([\d,]+) effective", text).group(1).replace(",", ""))


def test_the_readmes_code_runs_and_prints_what_it_says():
    (block,) = code_blocks("README.md")
    command = [sys.executable, "-W", "error", "-c", block]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert abs(effective(printed) / effective(block) - 1) < 0.2


def test_the_demo_draws_its_picture(tmp_path):
    picture = tmp_path / "demo.png"
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "products.py"), str(picture)],
        check=True,
        capture_output=True,
        text=True,
    )
    assert picture.read_bytes().startswith(b"\x89PNG")
    for way in ("Exact", "Chain", "Subset", "Anchored"):
        assert way in done.stdout


@pytest.mark.parametrize("module", ["numpyro", "matplotlib", "scipy.stats"])
def test_importing_epvi_stays_light(module):
    code = f"import sys, epvi; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_importing_epvi_leaves_jax_alone():
    code = (
        "import jax; before = {name: getattr(jax.config, name) for name in ('jax_enable_x64', 'jax_platforms')}\n"
        "import epvi; assert all(getattr(jax.config, name) == value for name, value in before.items())"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
