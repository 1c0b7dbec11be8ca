"""What epvi logs: nothing unless asked for, and then where shards are, how each went, and what rounds gained."""

import logging
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from commands import in_a_process
from deadly_workers import QUICK, ROWS, Losing, fitted, line, make_deadly

import epvi


def said(caplog, level=logging.INFO):
    return [record.getMessage() for record in caplog.records if record.name == "epvi" and record.levelno == level]


def matching(pattern, lines):
    return [one for one in lines if re.search(pattern, one)]


@pytest.fixture
def listening(caplog):
    with caplog.at_level(logging.DEBUG, logger="epvi"):
        yield caplog


def test_a_fit_in_this_process_says_how_it_goes(listening):
    with ThreadPoolExecutor(1) as executor:
        posterior = fitted(executor, shards=2)
    lines = said(listening)
    assert lines[0] == "90 rows in 2 shards of 45 rows each, on ThreadPoolExecutor"
    shards = matching(
        r"^shard \d of 2: 45 rows, 1 component, \d+ passes, \d+\.\d\d s; converged: 1 component\.$", lines
    )
    assert sorted(one[:12] for one in shards) == ["shard 1 of 2", "shard 2 of 2"]
    assert len(matching(r"^multiplied 2 fits: exact: the product has one component\.$", lines)) == 1
    assert len(matching(r"^round 0: the product of the fits, ELBO -[\d,.]+ ± [\d.]+; trust$", lines)) == 1
    assert lines[-2] == f"verdict: {posterior.certificate.text}"
    assert re.fullmatch(r"fitted 90 rows in 2 shards in \d+\.\d\d s", lines[-1])
    # Nobody says anything twice.
    assert len(lines) == 7
    scored = said(listening, logging.DEBUG)
    assert len(matching(r"^shard \d of 2 scored 2,048 draws: 45 rows, \d+ passes", scored)) == 2
    assert not said(listening, logging.WARNING)


def test_every_round_says_its_step_and_what_it_gained(listening):
    with ThreadPoolExecutor(1) as executor:
        inference = epvi.NVI(1, epvi.Spherical(), num_starts=2, num_draws=8)
        posterior = epvi.fit(line, ROWS, 2, inference=inference, refine=2, executor=executor)
    first, *steps = matching("^round ", said(listening))
    assert first.startswith("round 0: the product of the fits, ELBO ")
    pattern = r"round (\d): step size 1, [+-][\d.e+-]+ nats gained, ELBO -[\d,.]+ ± [\d.]+; trust"
    assert [int(re.match(pattern, one)[1]) for one in steps] == list(range(1, len(steps) + 1))
    assert len(steps) == posterior.step.rounds >= 1


def test_a_shard_that_lost_its_worker_and_is_run_again_is_a_warning(listening):
    fitted(Losing(True, 1), certify=False)
    assert said(listening, logging.WARNING) == [
        "shard 1 of 3 lost its worker while it was fitted, and is run again: a worker was terminated"
    ]
    assert len(matching(r"^shard \d of 3: 30 rows", said(listening))) == 3


@pytest.mark.slow
def test_a_worker_process_that_was_killed_is_a_warning_in_the_caller(listening, tmp_path, monkeypatch):
    make_deadly(monkeypatch, tmp_path)
    fitted()
    fitting, scoring = said(listening, logging.WARNING)
    assert fitting.startswith("shard 2 of 3 lost its worker while it was fitted, and is run again: ")
    assert scoring.startswith("shard 2 of 3 and 1 more lost their worker while they were scored, and are run again: ")
    assert said(listening)[0] == "90 rows in 3 shards of 30 rows each, on 2 workers of epvi's own"


def test_every_verb_between_sites_says_one_line(listening):
    parts = [{name: column[m::2] for name, column in ROWS.items()} for m in range(2)]
    fits = [epvi.fit_shard(line, part, f"{m}/2", inference=QUICK) for m, part in enumerate(parts, start=1)]
    posterior = epvi.combine(fits)
    draws = posterior.ask(64)
    scores = [epvi.score(line, part, draws, f"{m}/2") for m, part in enumerate(parts, start=1)]
    epvi.certify(posterior, scores)
    epvi.refine(posterior, scores)
    patterns = [
        r"shard 1 of 2: 45 rows, 1 component, ",
        r"shard 2 of 2: 45 rows, 1 component, ",
        r"combined 90 rows in 2 shards: exact: the product has one component\.$",
        r"shard 1 of 2 scored 64 draws: 45 rows, \d+ passes, \d+\.\d\d s$",
        r"shard 2 of 2 scored 64 draws: 45 rows, \d+ passes, \d+\.\d\d s$",
        r"certified by 64 draws: trust: ",
        r"refinement: no further step is worth it$",
    ]
    lines = said(listening)
    assert len(lines) == len(patterns)
    assert all(re.match(pattern, one) for pattern, one in zip(patterns, lines, strict=True))


def test_fits_that_were_in_the_work_folder_are_counted(listening, tmp_path):
    counted = "2 of 2 fits were in the work folder"
    with ThreadPoolExecutor(1) as executor:
        for times in range(2):
            epvi.fit(line, ROWS, 2, inference=QUICK, certify=False, executor=executor, work=tmp_path)
            assert said(listening).count(counted) == times


_SILENT = """
import logging, epvi
from epvi.ground.log import logger
logger.warning("nobody is listening")
{listen}
logger.info("now somebody is")
"""


def test_nothing_is_printed_unless_asked_for():
    assert in_a_process(_SILENT.format(listen="")) == ""
    listen = 'import sys; logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s: %(message)s")'
    assert in_a_process(_SILENT.format(listen=listen)).strip() == "epvi: now somebody is"
