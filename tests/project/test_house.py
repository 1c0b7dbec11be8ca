"""The house rules on trees that are made up for each of them: what is counted, and what is not."""

import ast
import subprocess
import sys
from pathlib import Path

import house
import pytest

STRUCTURES = """
class Structure: ...
class _Elementwise(Structure): ...
class Diagonal(_Elementwise): ...
class Full(Structure): ...
"""


@pytest.fixture
def tree(tmp_path):
    """Writes files by their paths below src/epvi, and reads them as the script does."""

    def made(files):
        for name, text in files.items():
            path = tmp_path / "epvi" / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return house.read(tmp_path)

    return made


def counted(modules, name):
    (rule,) = (rule for rule in house.rules(modules) if name in rule.name)
    return [place.removeprefix("epvi/") for place in rule.places]


def test_lines_of_functions_are_counted_without_decorators_and_docstrings(tree):
    text = '''
@staticmethod
def outer(
    x,
):
    """One.

    Two.
    """
    def inner():
        return x

    return inner
'''
    lines = {place.split()[-1]: lines for place, lines in house.functions(tree({"a": text})[0])}
    assert lines == {"outer(": 7, "inner():": 2}


@pytest.mark.parametrize(("lines", "places"), [(58, []), (59, ["a.py:1: def f(): (61 lines)"])])
def test_long_functions(tree, lines, places):
    text = "def f():\n" + "    x = 1\n" * lines + "    return x\n"
    assert counted(tree({"a": text}), "functions of more") == places


@pytest.mark.parametrize(("lines", "places"), [(350, []), (351, ["a.py: 351 lines"])])
def test_long_files(tree, lines, places):
    assert counted(tree({"a": "x = 1\n" * lines}), "files of more") == places


def test_classes_of_one_name_are_counted_after_the_first(tree):
    modules = tree({"a": "class A: ...\nclass B: ...\n", "b": "class C:\n    class A: ...\n", "c": "class A: ...\n"})
    assert counted(modules, "name of another") == ["b.py:2: class A: ...", "c.py:1: class A: ..."]


@pytest.mark.parametrize(
    "files",
    [
        {"a": "import epvi.b\n", "b": "from epvi import a\n"},
        {"a": "from epvi.b import x\n", "b": "def f():\n    from epvi.a import y\n"},
        {"a": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import epvi.b\n", "b": "import epvi.a\n"},
        {"p/a": "from . import b\n", "p/b": "from .a import x\n"},
        {"a": "import epvi.p.b\n", "p/b": "from ..a import x\n"},
        {"p/__init__": "from epvi.p.a import x\n", "p/a": "import epvi.p\n"},
        {"a": "import epvi.a\n"},
    ],
    ids=["names", "in a function", "for type checkers", "relative", "relative, above", "package", "itself"],
)
def test_two_modules_that_import_each_other_are_a_cycle(tree, files):
    assert len(counted(tree(files), "cycles")) == 1


def test_cycles_are_told_apart_and_named_in_a_line(tree):
    files = {
        "a": "import epvi.b\n",
        "b": "import epvi.c\n",
        "c": "import epvi.a\nimport epvi.x\n",
        "x": "import epvi.y\n",
        "y": "import epvi.x\nimport epvi.alone\n",
        "alone": "import math\n",
    }
    assert sorted(counted(tree(files), "cycles")) == [
        "epvi.a -> epvi.b -> epvi.c -> epvi.a",
        "epvi.x -> epvi.y -> epvi.x",
    ]


def test_modules_of_one_package_that_import_its_others_are_no_cycle(tree):
    files = {
        "p/__init__": "from epvi.p.a import x\n",
        "p/a": "from epvi.p import b\n",
        "p/b": "import epvi.c\n",
        "c": "",
    }
    assert counted(tree(files), "cycles") == []


@pytest.mark.parametrize(
    "question",
    [
        "isinstance(mixture.structure, Full)",
        "isinstance(s, (int, structure.Diagonal))",
        "isinstance(s, int | _Elementwise)",
        "issubclass(kind, Full)",
        "s == Full()",
        "type(s) is not Diagonal",
        "mixture.structure.rank",
        "max(all, key=lambda s: s.rank)",
        "precision.ndim == 1",
        "self.whole.hessian.ndim < 3",
        "prior_covariances[0].ndim != 2",
        "np.ndim(roots) == 2",
        "2 == len(packed.shape)",
        "mixture.covariances().ndim > 1",
    ],
)
def test_questions_about_a_structure_are_counted_outside_of_their_owner(tree, question):
    text = f"x = 1\ny = {question}\n"
    modules = tree({"gaussian/structure": STRUCTURES, "gaussian/mixture": text, "hub/a": text})
    assert counted(modules, "dispatches") == [f"hub/a.py:2: y = {question}"]


def test_a_match_is_a_question_too(tree):
    text = "match s:\n    case Full():\n        x = 1\n    case other.Diagonal():\n        x = 2\n"
    found = counted(tree({"gaussian/structure": STRUCTURES, "hub/a": text}), "dispatches")
    assert found == ["hub/a.py:2: case Full():", "hub/a.py:4: case other.Diagonal():"]


@pytest.mark.parametrize(
    "innocent",
    [
        "isinstance(s, Structure)",
        "isinstance(s, Fully)",
        "Full()",
        "means.ndim == 2",
        "column.ndim == 1",
        "precision.ndim",
        "range(1, curvature.ndim)",
        "precision.shape == mean.shape",
        "rank == 2",
    ],
)
def test_other_questions_are_not_counted(tree, innocent):
    modules = tree({"gaussian/structure": STRUCTURES, "hub/a": f"y = {innocent}\n"})
    assert counted(modules, "dispatches") == []


def test_what_is_allowed_is_not_counted_there_and_is_counted_elsewhere(tree, monkeypatch):
    monkeypatch.setattr(house, "ALLOWED", {"epvi/a.py: root.ndim == 2": "a reason"})
    modules = tree({"a": "x = root.ndim  ==  2\n", "b": "x = root.ndim == 2\n"})
    assert counted(modules, "dispatches") == ["b.py:1: x = root.ndim == 2"]


def test_what_is_allowed_is_there():
    modules = {module.path: ast.unparse(module.tree) for module in house.read(house.SRC)}
    for entry, reason in house.ALLOWED.items():
        path, _, expression = entry.partition(": ")
        assert expression in modules[path]
        assert reason


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("A = 3\n", [1]),
        ("_A, B = 1, 2.5\n", [1]),
        ("A: int = 2**20\n", [1]),
        ("A = (1, -3)\n", [1]),
        ("A = {'x': 0.5}\n", [1]),
        ("A = 3  # beside\n", []),
        ("# above\nA = 3\n", []),
        ("# above the first\nA = 3\nB = 4\n", [3]),
        ("# above an empty line\n\nA = 3\n", [3]),
        ("A = 3  # noqa: N806\n", [1]),
        ("A = (\n    3,  # inside\n)\n", []),
        ("A = (-1, 0, 1, 2, 1.0, True, 'text')\n", []),
        ("a = 3\n", []),
        ("def f(x, y=3): ...\n", [1]),
        ("def f(*, x, y=0.1): ...\n", [1]),
        ("def f(\n    x=1,\n    # above\n    y=3,\n    z=4,  # beside\n    u=5,\n): ...\n", [6]),
        ("def f(x, y=None, *, z=2): ...\n", []),
        ("# above\n@g\ndef f(x, y=3): ...\n", []),
        ('def f(x, y=3):\n    """The default 3 is judgement."""\n', []),
        ('def f(x, y=3):\n    """Does something."""\n', [1]),
        ("class C:\n    x: int = 3\n    # above\n    y: int = 4\n    z: int = field(default=5)\n    u: int\n", [2, 5]),
    ],
)
def test_numbers_need_a_comment_above_or_beside(tree, text, lines):
    assert [int(place.split(":")[1]) for place in counted(tree({"a": text}), "numbers")] == lines


def test_the_table_says_what_is_too_many_and_the_exit_code_too(tree, tmp_path, monkeypatch, capsys):
    tree({"a": "class A: ...\nB = 3\n", "b": "class A: ...\n"})
    monkeypatch.setattr(house, "NUMBERS_LIMIT", 2)
    assert house.main([str(tmp_path)], write=sys.stdout.write) == 1
    printed = capsys.readouterr().out
    assert "classes with the name of another            1      0  too many\n    epvi/b.py:1: class A: ...\n" in printed
    assert "numbers without a reason                    1      2  the limit can be 1\n" in printed
    assert "B = 3" not in printed
    (tmp_path / "epvi" / "b.py").unlink()
    assert house.main(["--list", str(tmp_path)], write=sys.stdout.write) == 0
    assert "    epvi/a.py:2: B = 3\n" in capsys.readouterr().out


def test_the_sources_keep_the_house_rules():
    command = [sys.executable, "-I", str(Path(house.__file__))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "files " in done.stdout
