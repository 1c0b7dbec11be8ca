"""`epvi -v`: what is logged is printed on stderr, one line per record, and nothing of it without -v."""

import io
import json
import logging
import re
import sys

import pytest
from commands import call
from some_fits import some_fit

from epvi.cli.log import logged
from epvi.cli.output import busy
from epvi.run.progress import ShardProgress

LOGGER = logging.getLogger("epvi")
TIME = r"\d\d:\d\d:\d\d"


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A shard's fit; whoever loads it logs at three levels."""
    some_fit().save(tmp_path / "fit.epvi")
    from epvi import files

    load = files.load_any

    def logging_load(path):
        logging.getLogger("epvi.files").debug("opening\n%s", "fit\x1b[2J.epvi")
        logging.getLogger("epvi.files").info("loading %d file", 1)
        logging.getLogger("epvi.files").warning("loaded")
        return load(path)

    monkeypatch.setattr("epvi.files.load_any", logging_load)
    return tmp_path / "fit.epvi"


@pytest.mark.parametrize("before", [(), ("-v",), ("-vv",)])
@pytest.mark.parametrize("after", [(), ("-v",), ("--verbose", "--verbose")])
def test_the_log_is_printed_from_the_level_that_was_asked_for(before, after, file, monkeypatch):
    # Python prints warnings of a logger without any handler; those of pytest are the root's.
    monkeypatch.setattr(LOGGER, "propagate", False)
    said = call(*before, "show", file, *after)
    expected = [f"{TIME} DEBUG opening fit\\?\\[2J.epvi", f"{TIME} INFO loading 1 file", f"{TIME} WARNING loaded"]
    verbosity = sum(word.count("v") for word in (*before, *after) if word != "--verbose") + after.count("--verbose")
    lines = said.stderr.splitlines()
    shown = {0: [], 1: expected[1:]}.get(verbosity, expected)
    assert len(lines) == len(shown)
    assert all(re.fullmatch(pattern, line) for pattern, line in zip(shown, lines, strict=True)), lines
    assert said.stdout == call("show", file).stdout


def test_the_loggers_own_settings_come_back(file):
    level, handlers = LOGGER.level, list(LOGGER.handlers)
    call("-vv", "show", file)
    call("show", file)
    assert (LOGGER.level, LOGGER.handlers) == (level, handlers)


def test_the_log_and_json_do_not_mix(file):
    said = call("-v", "show", file, "--json")
    assert json.loads(said.stdout)["kind"] == "shard"
    assert len(said.stderr.splitlines()) == 2


def test_a_verb_that_runs_others_prints_every_record_once(tmp_path, monkeypatch):
    from epvi.cli.verbs import demo

    monkeypatch.setattr(demo, "_SITES", 2)
    monkeypatch.setattr(demo, "_ROWS", 20)

    def fitted(*arguments, **settings):
        LOGGER.info("fitting")
        raise KeyboardInterrupt

    monkeypatch.setattr("epvi.site.tasks.fit_shard.fit_shard", fitted)
    lines = call("-v", "demo", "--into", tmp_path, code=130).stderr.splitlines()
    assert len([line for line in lines if line.endswith(" INFO fitting")]) == 1


class Terminal(io.StringIO):
    def isatty(self):
        return True


def lines_on(terminal):
    """What stands on a terminal after all that was written to it: moves of the cursor and erased lines are obeyed."""
    lines, row = [""], 0
    for token in re.split(r"(\x1b\[[0-9;?]*[a-zA-Z]|[\r\n])", terminal.getvalue()):
        if token == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif token == "\x1b[2K":
            lines[row] = ""
        elif re.fullmatch(r"\x1b\[\d*A", token):
            row -= int(token[2:-1] or 1)
        elif not token.startswith("\x1b") and token != "\r":
            lines[row] += token
    return [line.rstrip() for line in lines]


def log_on_a_terminal(shown, monkeypatch):
    """Log records while something is shown on a terminal of 80 columns; gives the lines that it has then."""
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stderr", terminal)
    with logged(1), shown():
        for m in (1, 2):
            LOGGER.info("shard %d is done", m)
    return [re.sub(TIME, "TIME", line) for line in lines_on(terminal) if line]


def test_the_log_leaves_the_progress_bar_whole(monkeypatch):
    *above, bar = log_on_a_terminal(lambda: ShardProgress(3, None), monkeypatch)
    assert above == ["TIME INFO shard 1 is done", "TIME INFO shard 2 is done"]
    assert re.match(r"fitting shards .* 0/3 ", bar)


def test_the_log_leaves_the_spinner_whole(monkeypatch):
    lines = log_on_a_terminal(lambda: busy("reading"), monkeypatch)
    assert lines == ["TIME INFO shard 1 is done", "TIME INFO shard 2 is done"]
