"""The example of four hospitals, all roles played on its made-up table."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "multi_site"
QUICK = "\n[inference]\nnum_components = 1\nnum_starts = 4\n"


@pytest.fixture
def play(tmp_path, monkeypatch):
    """The example's module, with quick settings in its studies, and folders with the made-up rows."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import run
    from simulate import simulate

    here = Path(shutil.copytree(EXAMPLE, tmp_path / "example"))
    for study in here.glob("*.toml"):
        study.write_text(study.read_text() + QUICK)
    monkeypatch.setattr(run, "HERE", here)
    run.split(simulate(), tmp_path / "work")
    yield run, tmp_path / "work"
    for name in ("run", "simulate", "model", "picture", "reference"):
        sys.modules.pop(name, None)


def test_limits_name_the_sites_whose_zeros_are_no_values(play):
    run, work = play
    run.hand_out(work, "draft-1.toml", (run.HERE / "draft-1.toml").read_text())
    told = run.tell_of_columns(work, "draft-1.toml")
    assert "303" in told["cleveland"]
    assert "epvi:" not in told["hungarian"]
    assert re.search(r"epvi: column 'chol' .* has 1\d\d values outside 50 to 700", told["switzerland"])
    assert "epvi: column 'trestbps' of file 'rows.csv' has 1 value outside 50 to 300" in told["va"]


@pytest.mark.slow
def test_one_baseline_for_all_is_in_conflict_at_the_site_where_another_was_planted(play):
    run, work = play
    report = run.without_cholesterol(work)
    assert "in conflict: shard 3 of 4 (switzerland)" in report
    assert re.search(r"!  3 of 4 \(switzerland\) .* baseline ", report)
    assert "Without it the others agree." in report


@pytest.mark.slow
def test_the_whole_example_runs_and_baselines_of_their_own_let_the_sites_agree(tmp_path):
    command = [sys.executable, "run.py", "--work", str(tmp_path), "--nuts"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=EXAMPLE)
    assert "the 4 shards agree" in done.stdout.split("=== 4.")[1]
    # Of the second draft, of the study, and of the study refined.
    worst = [float(said) for said in re.findall(r"worst mean [^\n]+, ([\d.]+) sds", done.stdout)]
    assert len(worst) == 3
    # Small shards: means are off by part of an sd, and tau, which no shard determines, by more.
    assert worst[1] < 2.5
    assert worst[2] < 0.2
    assert (tmp_path / "multi_site.png").read_bytes().startswith(b"\x89PNG")
