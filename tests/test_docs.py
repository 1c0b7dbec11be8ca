"""Prose that runs: the README's code, the demo, and what `import epvi` leaves alone."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import epvi
from epvi import supports
from epvi.envelope import KINDS

ROOT = Path(__file__).parents[1]


def code_blocks(path):
    return re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(), flags=re.DOTALL)


def effective(text):
    return float(re.search(r"sampled: (?:about )?([\d,]+) effective", text).group(1).replace(",", ""))


def run_block(path):
    (block,) = code_blocks(path)
    command = [sys.executable, "-W", "error", "-c", block]
    return block, subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_the_readmes_code_runs():
    _, printed = run_block("README.md")
    assert len(re.findall(r"^(alpha|w\[\d\]) +-?\d", printed, flags=re.MULTILINE)) == 9
    held_out = float(printed.splitlines()[-1])
    assert -np.log(2) < held_out < 0  # better than a coin


def test_the_products_page_prints_what_it_says():
    block, printed = run_block("docs/products.md")
    assert abs(effective(printed) / effective(block) - 1) < 0.2


def test_the_writer_of_the_handover_page_writes_what_epvi_reads(tmp_path):
    writer, reader = code_blocks("docs/handover.md")
    assert set(re.findall(r"^import (\w+)", writer, flags=re.MULTILINE)) == {"hashlib", "json", "struct"}
    for block in (writer, reader):
        command = [sys.executable, "-W", "error", "-c", block]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    fit = epvi.load(tmp_path / "site-1.epvi")
    root = np.array([[2, 0, 0], [0.5, 1, 0], [0, 0, 4]])
    np.testing.assert_allclose(fit.mixture.covariances()[0], np.linalg.inv(root @ root.T), atol=1e-12)
    assert re.search(r"^w\[0\] +1\.0", done.stdout, flags=re.MULTILINE)


def test_the_handover_page_names_every_entry_and_every_support():
    page = (ROOT / "docs" / "handover.md").read_text()
    fields = [field.name for field in dataclasses.fields(epvi.Provenance)]
    missing = [word for word in [*fields, *supports._PLAIN, *supports._BOUNDED, *KINDS] if word not in page]
    assert not missing


def test_two_files_of_one_site_tell_a_row_as_the_guide_warns():
    _, printed = run_block("docs/multi-site.md")
    told, true = (re.findall(r"-?\d+\.?\d*", line) for line in printed.splitlines())
    np.testing.assert_allclose(np.array(told, float), np.array(true, float), atol=0.05)


DEMO_SAYS = ["six shards", "all rows", "NUTS", "w[0]"]
SMALL_DEMO = """
import sys
import demo
demo.NUM_ROWS, demo.WARM_UP, demo.DRAWS = 600, 30, 50
demo.main(sys.argv[1])
"""


def drawn(arguments, said, tmp_path):
    picture = tmp_path / "demo.png"
    command = [sys.executable, *arguments, str(picture)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT / "examples")
    for word in said:
        assert word in done.stdout
    return picture.read_bytes()


def test_the_demo_draws_its_picture_of_few_rows(tmp_path):
    assert drawn(["-c", SMALL_DEMO], DEMO_SAYS, tmp_path).startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "said"), [("demo.py", DEMO_SAYS), ("products.py", ["Exact", "Chain", "Subset", "Anchored"])]
)
def test_the_examples_draw_their_pictures(example, said, tmp_path):
    assert drawn([example], said, tmp_path).startswith(b"\x89PNG")


@pytest.mark.parametrize("module", ["matplotlib", "rich", "distributed", "pandas", "scipy.stats"])
def test_importing_epvi_stays_light(module):
    code = f"import sys, epvi; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_importing_epvi_leaves_jax_alone():
    code = (
        "import jax; before = {name: getattr(jax.config, name) for name in ('jax_enable_x64', 'jax_platforms')}\n"
        "import epvi; assert all(getattr(jax.config, name) == value for name, value in before.items())"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
