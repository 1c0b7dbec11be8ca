"""Run a study at four hospitals: the commands of every site and of the centre, each in its own folder.

    python run.py                          with a simulated table
    python run.py --table heart.csv        with the UCI table (columns age ... num, and site)
    python run.py --nuts                   and compare with NUTS on the pooled rows, which no site could run

Commands run in this process, one after the other, and their output is shown unchanged. Draws multi_site.png.
"""

import argparse
import contextlib
import io
import re
import shlex
import shutil
from pathlib import Path

import pandas as pd
from model import SITES
from picture import draw
from reference import by_nuts, compare
from simulate import simulate

import epvi
from epvi.cli import main as command_line

HERE = Path(__file__).parent
MOST_STEPS = 4


def run(folder: Path, command: str, show: bool = True) -> str:
    """Run `epvi command` in a folder and return its output, error messages included."""
    words = []
    for word in shlex.split(command):
        found = sorted(path.name for path in folder.glob(word)) if "*" in word else []
        words += found or [word]
    printed = io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
        contextlib.suppress(SystemExit),
    ):
        command_line(words, prog_name="epvi", standalone_mode=False)
    if show:
        print(f"\n{folder.name}$ epvi {command}\n{printed.getvalue().rstrip()}", flush=True)
    return printed.getvalue()


def split(table: pd.DataFrame, work: Path) -> None:
    """Make a folder with its own rows for each hospital, and one without rows for the centre."""
    for name in (*SITES, "centre"):
        (work / name).mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / "model.py", work / name)
    for name in SITES:
        table[table["site"] == name].to_csv(work / name / "rows.csv", index=False)


def tell_of_columns(work: Path, study: str, show: tuple[str, ...] = ()) -> dict[str, str]:
    """Every site writes the statistics of its columns; returns the output at each site."""
    stem = Path(study).stem
    return {
        name: run(work / name, f"stats {study} --rows rows.csv -o {name}.{stem}.stats.epvi", name in show)
        for name in SITES
    }


def agree_on_units(work: Path, study: str, show: bool = False) -> None:
    """The centre pools the statistics; the constants go into every site's copy of the study."""
    stem = Path(study).stem
    for name in SITES:
        shutil.copy(work / name / f"{name}.{stem}.stats.epvi", work / "centre")
    run(work / "centre", f"pool *.{stem}.stats.epvi --into {study}", show)
    hand_out(work, study, (work / "centre" / study).read_text())


def hand_out(work: Path, study: str, text: str) -> None:
    """Write the study into every folder."""
    for name in (*SITES, "centre"):
        (work / name / study).write_text(text)


def fit_and_combine(work: Path, study: str, show: bool = False) -> str:
    """Every site fits its rows and sends one file; prints and returns the centre's conflict report."""
    stem = Path(study).stem
    for name in SITES:
        run(work / name, f"shard {study} --rows rows.csv --shard {name} -o {name}.{stem}.epvi", show)
        shutil.copy(work / name / f"{name}.{stem}.epvi", work / "centre")
    files = " ".join(f"{name}.{stem}.epvi" for name in SITES)
    return run(work / "centre", f"combine {files} -o {stem}.posterior.epvi --check")


def mark_zeros(path: Path, column: str) -> None:
    """Mark zeros as missing, as a person would after the limits have reported an impossible value."""
    rows = pd.read_csv(path)
    rows.loc[rows[column] == 0, column] = float("nan")
    rows.to_csv(path, index=False)


def with_cholesterol(work: Path) -> tuple[dict[str, str], str]:
    """The first draft: the values that its limits refuse, and the conflict report without limits."""
    print("\n=== 1. The first draft has cholesterol. Its limits refuse what is not cholesterol:")
    hand_out(work, "draft-1.toml", (HERE / "draft-1.toml").read_text())
    refused = tell_of_columns(work, "draft-1.toml", show=SITES)
    print("\n=== 2. The same without limits. Nothing is refused:")
    hand_out(work, "no-limits.toml", re.sub(r"limits = .*\n", "", (HERE / "draft-1.toml").read_text()))
    tell_of_columns(work, "no-limits.toml")
    agree_on_units(work, "no-limits.toml")
    return refused, fit_and_combine(work, "no-limits.toml")


def without_cholesterol(work: Path) -> str:
    """The second draft: the conflict report with one baseline for all hospitals."""
    print("\n=== 3. Without cholesterol. VA is told of a blood pressure of 0, and marks it as missing:")
    hand_out(work, "draft-2.toml", (HERE / "draft-2.toml").read_text())
    tell_of_columns(work, "draft-2.toml", show=("va",))
    mark_zeros(work / "va" / "rows.csv", "trestbps")
    tell_of_columns(work, "draft-2.toml", show=("va",))
    agree_on_units(work, "draft-2.toml")
    return fit_and_combine(work, "draft-2.toml")


def the_study(work: Path) -> str:
    """The final study, with a baseline for each hospital."""
    print("\n=== 4. The study: a baseline for each hospital.")
    hand_out(work, "study.toml", (HERE / "study.toml").read_text())
    tell_of_columns(work, "study.toml", show=("switzerland",))
    agree_on_units(work, "study.toml", show=True)
    report = fit_and_combine(work, "study.toml", show=True)
    run(work / "switzerland", "show switzerland.study.epvi")
    run(work / "centre", "summary study.posterior.epvi")
    return report


def second_round(work: Path) -> Path:
    """Certify and refine: every site scores the centre's draws in every round, until a step would gain nothing."""
    print("\n=== 5. Can it be trusted? Every site scores draws of the posterior, and the centre refines it.")
    run(work / "centre", "certify study.posterior.epvi --draws draws.epvi")
    posterior, draws = "study.posterior.epvi", "draws.epvi"
    for step in range(1, MOST_STEPS + 1):
        score(work, draws, show=step == 1)
        if step == 1:
            run(work / "centre", f"certify {posterior} scores-*.epvi")
        last = step == MOST_STEPS
        then = "--last" if last else "--draws next.epvi"
        said = run(work / "centre", f"refine {posterior} scores-*.epvi -o refined-{step}.epvi {then}")
        posterior, draws = f"refined-{step}.epvi", "next.epvi"
        if last or "Nothing is left" in said:
            break
    return work / "centre" / posterior


def score(work: Path, draws: str, show: bool) -> None:
    """Send the draws to all sites, and collect one file of scores from each."""
    for name in SITES:
        shutil.copy(work / "centre" / draws, work / name)
        command = f"score study.toml {draws} --rows rows.csv --shard {name} -o scores-{name}.epvi"
        run(work / name, command, show and name == "switzerland")
        shutil.copy(work / name / f"scores-{name}.epvi", work / "centre")


def main() -> None:
    parser = argparse.ArgumentParser(description="A study at four hospitals, all roles played.")
    parser.add_argument("--table", type=Path, help="The UCI heart disease table; simulated if not given.")
    parser.add_argument("--work", type=Path, default=Path("multi_site_work"), help="Where the folders are made.")
    parser.add_argument("--nuts", action="store_true", help="Compare with NUTS on all rows in one place.")
    said = parser.parse_args()
    split(simulate() if said.table is None else pd.read_csv(said.table), said.work)
    with_cholesterol(said.work)
    without_cholesterol(said.work)
    the_study(said.work)
    refined = second_round(said.work)
    posterior = epvi.load(refined)
    assert isinstance(posterior, epvi.Posterior)
    reference = None
    if said.nuts:
        print("\n=== 6. NUTS on all rows in one place, which no site could run:")
        for study in ("draft-2.toml", "study.toml"):
            files = [said.work / name / "rows.csv" for name in SITES]
            reference = by_nuts(said.work / "centre" / study, files)
            made = epvi.load(said.work / "centre" / f"{Path(study).stem}.posterior.epvi")
            assert isinstance(made, epvi.Posterior)
            print(f"\n{study}\n{compare(made, reference)}", flush=True)
        print(f"\nstudy.toml, refined\n{compare(posterior, reference)}", flush=True)
    path = draw(posterior, said.work / "multi_site.png", reference)
    print(f"\nPicture: {path.resolve()}")


if __name__ == "__main__":
    main()
