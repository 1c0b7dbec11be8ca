"""Prose that runs: the README's code, the demo, and what `import epvi` leaves alone."""

import ast
import dataclasses
import importlib
import io
import re
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import epvi
from epvi.hub.samples.method import DrawsMethod
from epvi.wire import supports
from epvi.wire.envelope import KINDS

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT) for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")))


def code_blocks(path):
    return re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(), flags=re.DOTALL)


def effective(text):
    return float(re.search(r"sampled: (?:about )?([\d,]+) effective", text).group(1).replace(",", ""))


def run_block(path, number=1, of=1):
    """The output of the block with this number, and its text; there are `of` blocks on the page."""
    blocks = code_blocks(path)
    assert len(blocks) == of
    block = blocks[number - 1]
    command = [sys.executable, "-W", "error", "-c", block]
    return block, subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_code_in_prose_can_be_read_and_names_what_epvi_has(path):
    """Without running it, which takes the time; `make test-docs` does."""
    for block in code_blocks(path):
        used = {
            node.attr
            for node in ast.walk(ast.parse(block))
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "epvi"
        }
        assert not [name for name in used if not hasattr(epvi, name)]


# A number as it is printed: 1,919 or -0.457.
NUMBER = re.compile(r"(?<![\w.,\[])-?\d[\d,]*(?:\.\d+)?")


def assert_prints(printed, shown):
    """The same words in the same lines, and numbers within two units of their last digit, or 2 %: other machines and
    versions of JAX round differently.
    """
    assert [NUMBER.sub("#", line).split() for line in printed.splitlines()] == [
        NUMBER.sub("#", line).split() for line in shown.splitlines()
    ]
    for one, other in zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True):
        value, expected = (float(text.replace(",", "")) for text in (one, other))
        unit = 10.0 ** -len(other.partition(".")[2])
        assert abs(value - expected) <= max(2.001 * unit, 0.02 * abs(expected)), (one, other)


def test_printed_numbers_may_differ_a_little_and_words_may_not():
    shown = "trust: 1,919 draws\nw[0]  -0.457  0.020\n"
    assert_prints("trust: 1,900 draws\nw[0] -0.455 0.022\n", shown)
    for other in ("trust: 1,700 draws", "trust: 19 draws", "do not trust: 1,919 draws"):
        with pytest.raises(AssertionError):
            assert_prints(f"{other}\nw[0]  -0.457  0.020\n", shown)
    for other in ("w[0]  0.457  0.020", "w[0]  -0.457  0.023", "w[1]  -0.457  0.020", "w[0]  -0.457"):
        with pytest.raises(AssertionError):
            assert_prints(f"trust: 1,919 draws\n{other}\n", shown)


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 80
    (block,) = code_blocks("README.md")
    assert len([line for line in block.splitlines() if line]) <= 12


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_links_lead_somewhere(path):
    links = re.findall(r"\]\(([^)#\s]+)", (ROOT / path).read_text())
    assert not [link for link in links if "://" not in link and not (ROOT / path.parent / link).exists()]


def test_the_front_page_of_the_docs_names_every_page():
    links = set(re.findall(r"\]\(([^)#/]+\.md)\)", (ROOT / "docs" / "README.md").read_text()))
    assert links == {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}


@pytest.mark.docs
def test_the_readmes_code_prints_what_it_shows():
    _, printed = run_block("README.md")
    (shown,) = re.findall(r"```text\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert_prints(printed, shown)


@pytest.mark.docs
def test_the_products_page_prints_what_it_says():
    block, printed = run_block("docs/products.md")
    assert abs(effective(printed) / effective(block) - 1) < 0.2


@pytest.mark.docs
def test_the_workers_page_logs_what_it_says():
    (block,) = code_blocks("docs/workers.md")
    logged = subprocess.run([sys.executable, "-c", block], check=True, capture_output=True, text=True).stderr
    lines = [line for line in logged.splitlines() if line.startswith("INFO:epvi:")]
    page = (ROOT / "docs" / "workers.md").read_text()
    expected = re.findall(r"^    (INFO:epvi:.*)$", page, flags=re.MULTILINE)
    # Numbers differ from one machine to the next, and the order of shards.
    words = [re.sub(r"[\d.,+-]+", "", line.split(" s;")[0]).split() for line in (*expected, *lines)]
    assert len(lines) == len(expected)
    assert all(a[:3] == b[:3] for a, b in zip(words[: len(expected)], words[len(expected) :], strict=True))


def test_the_draws_page_names_every_method():
    page = (ROOT / "docs" / "draws.md").read_text()
    table = re.findall(r"^\| `(\w+)\(", page, flags=re.MULTILINE)
    assert sorted(table) == sorted(method.__name__ for method in public_methods())


def public_methods():
    public = (getattr(epvi, name) for name in epvi.__all__)
    return [one for one in public if isinstance(one, type) and issubclass(one, DrawsMethod) and one is not DrawsMethod]


@pytest.mark.docs
def test_the_draws_page_combines_what_nuts_drew():
    _, printed = run_block("docs/draws.md")
    status, *lines = printed.splitlines()
    assert status.startswith("drawn: 1,000 draws from 4 shards")
    numbers = [re.findall(r"-?\d+\.\d*(?:e-?\d+)?", line) for line in lines]
    w, log_sigma = (np.array(found, float).reshape(4, -1) for found in numbers)
    for mean, all_rows, sd, all_rows_sd in (w, log_sigma):
        assert np.all(np.abs(mean - all_rows) < 0.35 * all_rows_sd)
        np.testing.assert_allclose(sd, all_rows_sd, rtol=0.2)


@pytest.mark.docs
def test_the_scope_pages_code_weighs_two_models():
    _, printed = run_block("docs/scope.md")
    assert 0 < float(re.search(r"is used\) = ([\d.]+)", printed)[1]) < 1


@pytest.mark.docs
def test_the_multilevel_page_finds_the_made_up_counties():
    _, printed = run_block("docs/multilevel.md")
    assert printed.startswith("trust")
    assert "the 85 group effects (level) were integrated out" in printed
    for name, truth in (("mu", 1.5), ("tau", 0.3), ("slope", -0.7), ("sigma", 0.75)):
        mean, sd = re.search(rf"^{name} +(\S+) +(\S+)", printed, flags=re.MULTILINE).groups()
        assert abs(float(mean) - truth) < 4 * float(sd)


@pytest.mark.docs
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


@pytest.mark.docs
def test_the_first_sites_own_groups_are_told_and_no_others():
    _, printed = run_block("docs/multi-site.md", 1, of=2)
    assert "Aar" in printed
    assert "Brig" in printed
    assert "Chur" not in printed


@pytest.mark.docs
def test_two_files_of_one_site_tell_a_row_as_the_guide_warns():
    _, printed = run_block("docs/multi-site.md", 2, of=2)
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


def test_the_demo_makes_its_table_and_picture_of_any_answers(tmp_path, monkeypatch):
    """Without the fits, which take the time; `make demo` and the slow tests have them."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import demo

    rng = np.random.default_rng(0)
    whole, *shards = (epvi.GaussianMixture.from_covariances(rng.normal(size=(1, 7)), np.ones(1)) for _ in range(7))
    space = types.SimpleNamespace(slices={"w": slice(1, 7)})
    full = types.SimpleNamespace(space=space, mixture=whole, fits=[])
    product = types.SimpleNamespace(
        space=space, mixture=whole, fits=[types.SimpleNamespace(mixture=shard) for shard in shards]
    )
    truth = demo.Answer(np.zeros(6), np.ones(6), 9.0, 8.0)
    other = demo.Answer(np.full(6, 0.25), np.full(6, 2.0), 7.0, 6.0)
    console = Console(file=io.StringIO(), width=120)
    console.print(demo.table({"six shards": other, "all rows": truth, "NUTS": truth}))
    lines = [re.split(r"\s*[│┃]\s*", line)[1:-1] for line in console.file.getvalue().splitlines()]
    said = {cells[0]: cells[1:] for cells in lines if len(cells) == 4}
    assert said[""] == ["six shards", "all rows", "NUTS"]
    assert said["w[5]"] == ["0.250 ± 2.000", "0.000 ± 1.000", "0.000 ± 1.000"]
    assert said["seconds, once more"] == ["6.0", "8.0", "8.0"]
    assert said["worst mean error, in sds"] == ["0.25", "0.00", ""]
    assert said["sds, relative to NUTS"] == ["2.00 to 2.00", "1.00 to 1.00", ""]
    demo.draw(product, full, rng.normal(size=(50, 6)), tmp_path / "demo.png")
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_demo_draws_its_picture_of_few_rows(tmp_path):
    assert drawn(["-c", SMALL_DEMO], DEMO_SAYS, tmp_path).startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "said"),
    [
        ("demo.py", DEMO_SAYS),
        ("products.py", ["Exact", "Chain", "Subset", "Anchored"]),
        ("multilevel.py", ["trust", "county  houses"]),
    ],
)
def test_the_examples_draw_their_pictures(example, said, tmp_path):
    assert drawn([example], said, tmp_path).startswith(b"\x89PNG")


def test_importing_epvi_stays_light():
    heavy = {"matplotlib", "rich", "distributed", "pandas", "scipy.stats"}
    code = f"import sys, epvi; print(*{heavy} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "\n"


def test_importing_epvi_leaves_jax_alone():
    code = (
        "import jax; before = {name: getattr(jax.config, name) for name in ('jax_enable_x64', 'jax_platforms')}\n"
        "import epvi; assert all(getattr(jax.config, name) == value for name, value in before.items())"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_architecture_page_names_modules_that_are_there():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        journeys = importlib.import_module("journeys")
    finally:
        sys.path.pop(0)
    listed = {stop.module for stop in (*journeys.FIT, *journeys.STUDY)}
    assert not [module for module in listed if not (ROOT / "src/epvi" / f"{module}.py").exists()]
    page = (ROOT / "docs/architecture.md").read_text()
    named = re.findall(
        r"`((?:cli|study|run|hub|site|models|engines|wire|parameters|gaussian|ground)/[\w/]*(?:\.py)?)`", page
    )
    assert named
    assert not [path for path in named if not (ROOT / "src/epvi" / path).exists()]
    there = {path.parent for path in (ROOT / "src/epvi").rglob("*.py")} - {ROOT / "src/epvi"}
    inner = {str(folder.relative_to(ROOT / "src/epvi")) for folder in there} - {"cli/verbs", "cli/describe"}
    assert not [folder for folder in inner if f"`{folder}/`" not in page]
