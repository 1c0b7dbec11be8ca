"""Text from elsewhere is printed, and never obeyed: no file name, header, cell or label reaches a terminal raw."""

import dataclasses
import json
import re

import numpy as np
import pytest
from click.testing import CliRunner
from commands import call
from some_fits import some_fit

import epvi
from epvi.cli import main
from epvi.cli.output import json_line
from epvi.ground.printable import shown, shown_lines
from epvi.ground.text_table import lined_up
from epvi.site.rows.split import split_by
from epvi.study.study import load_study

# Clears the screen, sets a title, the same with one C1 character, begins a line, goes back in it, turns the direction.
NASTY = ["\x1b[2J", "\x1b]0;owned\x07", "\x9b31m", "\x85", "\n", "\r", "\b", "\u202e", "\u2028", "\x00", "\udc9b"]
IN_NAMES = [text for text in NASTY if text != "\x00"]
STUDY = """
name = {text}
model = "logistic"
shards = [{text}, "south"]

[arguments]
x = ["a", "b"]
y = "y"
"""


def harmless(text):
    """Whether a terminal only prints it: lines of printable characters."""
    return all(line.isprintable() for line in text.split("\n"))


def said_by(*arguments):
    """Everything that a command prints, which must be harmless, and one line of a refusal."""
    result = CliRunner().invoke(main, [str(one) for one in arguments], prog_name="epvi")
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert harmless(result.output), repr(result.output)
    return result


@pytest.mark.parametrize("text", NASTY, ids=ascii)
def test_messages_tables_labels_and_json_hold_nothing_but_printable_characters(text):
    assert shown(f"a{text}b").isprintable()
    assert shown("näive 表 ½") == "näive 表 ½"
    assert shown_lines("a\nb\x1b") == "a\nb?"
    assert str(epvi.EpviError(f"column 'a{text}b' is wrong.")).isprintable()
    assert harmless(lined_up([["", text], [text, "1"]]))
    assert len(lined_up([["", text], [text, "1"]]).split("\n")) == 2
    split = split_by({"site": np.array([f"a{text}", "b"], object)}, "site")
    assert all(label.isprintable() for label in split.labels)
    line = json_line({f"a{text}": [f"b{text}"]})
    assert line.isprintable()
    # Nothing is lost to a program that reads it.
    assert json.loads(line) == {f"a{text}": [f"b{text}"]}


@pytest.mark.parametrize("text", IN_NAMES, ids=ascii)
def test_a_files_name_is_printed_harmlessly(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good, bad = f"good{text}.epvi", f"bad{text}.epvi"
    some_fit().save(good)
    (tmp_path / bad).write_bytes(b"")
    (tmp_path / f"{text}.csv").write_text("a,y\n1,2\n")
    rows = ("--rows", f"{text}.csv", "--x", "a", "--y", "y", "--shard", "1/2")
    for arguments, code in [
        (("show", good), 0),
        (("summary", good), 0),
        (("show", bad), 1),
        (("show", f"no{text}"), 1),
        (("combine", good, bad, "--check"), 1),
        (("combine", good, f"--{text}"), 2),
        (("combine", good, "-o", f"no{text}/p.epvi"), 1),
        (("pool", good), 1),
        (("shard", f"{text}.py:f", *rows), 1),
        (("shard", f"{text}.toml", *rows[:2], "--shard", "1/2"), 1),
        (("shard", "logistic", *rows[:-1], text), 1),
        (("stats", *rows[:-2], "--min-rows", "9", "-o", f"s{text}.epvi"), 1),
        ((text,), 2),
    ]:
        assert said_by(*arguments).exit_code == code, arguments


def test_what_was_written_is_told_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("a,y\n" + "1,2\n2,3\n" * 9)
    words = said_by("stats", "--rows", "rows.csv", "--x", "a", "--y", "y", "-o", "s\nWrote it.\x1b[2J").stdout
    assert "Wrote s?Wrote it.?[2J (" in words
    printed = call("stats", "--rows", "rows.csv", "--x", "a", "--y", "y", "-o", "s\n", "--json").stdout
    assert json.loads(printed)["file"] == "s\n"


@pytest.mark.parametrize("text", [t for t in NASTY if t not in ("\n", "\r", "\x00", "\udc9b")], ids=ascii)
def test_headers_and_cells_of_csv_files_are_printed_harmlessly(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text(f"a,h{text},y\n1,2,c{text}\n2,1,1\n", "utf-8")
    rows = ("--rows", "rows.csv", "--y", "y", "--shard", "1/2")
    assert said_by("shard", "logistic", *rows, "--x", "nosuch").exit_code == 1
    assert said_by("shard", "logistic", *rows, "--x", f"a,h{text}").exit_code == 1
    assert said_by("shard", "logistic", *rows, "--x", "a", "--levels", f"y=1,d{text}").exit_code == 1
    (tmp_path / "numbers.csv").write_text(f"a,h{text}\n" + "1,2\n2,1\n" * 6, "utf-8")
    said_by("stats", "--rows", "numbers.csv", "--x", f"a,h{text}", "-o", "s.epvi")
    with pytest.raises(epvi.EpviError) as error:
        epvi.fit_shard(epvi.models.logistic, epvi.Rows("rows.csv", x=["a"], y="y"), "1/2")
    assert str(error.value).isprintable()


@pytest.mark.parametrize("text", [t for t in NASTY if t != "\udc9b"], ids=ascii)
def test_a_study_speaks_harmlessly(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(STUDY.format(text=json.dumps(f"n{text}")), "utf-8")
    (tmp_path / "rows.csv").write_text("a,b,y\n1,2,1\n")
    study = load_study("study.toml")
    assert study.name.isprintable()
    assert study.num_shards == 2
    assert study.shard(f"n{text}")[0] == "1/2"
    for which in ("nosuch", "3/3"):
        assert said_by("shard", "study.toml", "--rows", "rows.csv", "--shard", which).exit_code == 1
    labels = []

    def fitted(model, table, part, *settings):
        labels.append(part.label)
        raise epvi.EpviError(f"shard {part.label} is not fitted here.")

    monkeypatch.setattr("epvi.study.study.fit_table", fitted)
    said_by("shard", "study.toml", "--rows", "rows.csv", "--shard", "1/2")
    assert [label.isprintable() for label in labels] == [True]


def test_parameters_of_a_file_have_printable_names(tmp_path):
    fit = some_fit()
    parameters = tuple(dataclasses.replace(p, name=f"{p.name}\x1b[2J") for p in fit.space.parameters)
    strange = dataclasses.replace(fit, space=dataclasses.replace(fit.space, parameters=parameters))
    with pytest.raises(epvi.EpviError, match="is not a printable text") as error:
        strange.save(tmp_path / "strange.epvi")
    assert str(error.value).isprintable()
    assert repr(strange).isprintable()
    assert strange.space.describe().isprintable()
    assert not list(tmp_path.iterdir())


def test_what_a_spinner_says_is_not_read_as_markup(monkeypatch):
    """A study's name such as "[/]" would end the command, and "[red]" colour it."""
    import io
    import sys

    from epvi.cli.output import busy

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with busy("fitting [/] \x1b[2J[link=http://x]here"):
        pass
    printed = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())
    assert "fitting [/] ?[2J[link=http://x]here" in printed
