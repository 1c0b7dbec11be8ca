"""Check whether two versions of epvi give the same answers from the same seeds, and read each other's files.

Run: python benchmarks/same_answers.py --write answers.npz --files folder (a minute of one core) with one version, and
with the other --compare answers.npz; then --load folder --compare answers.npz, which computes from the files that the
first version wrote. The answers are those of the demo, of the families and products of fit.py at a small size, and of a
study by files (shards, combine, certify, score, refine). To run another checkout's epvi with this script, put its src
into PYTHONPATH. Exits with 1 if a quantity differs by more than 1e-12 of its largest entry.
"""

import argparse
import contextlib
import io
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import fit as families
import numpy as np

import epvi
from epvi.cli import main as command_line
from epvi.models import logistic, simulate_logistic
from epvi.wire.envelope import load as load_envelope

Answers = dict[str, np.ndarray]
T = TypeVar("T")

# Relative tolerance: room for other orders of summation, and for nothing else.
TOLERANCE = 1e-12
SITES = ("north", "south", "west")
STUDY = """
name = "the same answers"
model = "logistic"
shards = ["north", "south", "west"]
seed = 3
standardise = ["age"]

[arguments]
x = ["one", "age", "dose", "grade"]
y = "ill"

[columns.grade]
levels = ["low", "middle", "high"]
"""


def of_posterior(posterior: epvi.Posterior) -> Iterator[tuple[str, np.ndarray]]:
    """The numbers that a user reads from a posterior."""
    made = posterior.summary()
    yield from {"mean": made.mean, "sd": made.sd, "quantiles": made.quantiles}.items()
    yield "means", np.asarray(posterior.mixture.means)
    yield "weights", np.asarray(posterior.mixture.weights)
    yield "covariance", np.asarray(posterior.mixture.covariance())
    theta = posterior.theta(200, seed=4)
    yield "draws", theta
    yield "log density", posterior.log_density(theta)
    for fit in posterior.fits:
        yield f"shard {fit.shard} means", np.asarray(fit.mixture.means)
        yield f"shard {fit.shard} history", np.asarray(fit.history)
        yield f"shard {fit.shard} elbo", np.asarray(fit.elbo)
    found = posterior.certificate
    if found is not None:
        yield "certificate", np.array([found.ess, found.k_hat, found.mean_shift, found.mean_error, *found.sd_ratios])
        yield "elbo", np.asarray(found.elbo)
        yield "importance weights", found.weights
        yield "conflict", np.asarray(found.agreement.p)
        if found.log_evidence is not None:
            yield "log evidence", np.asarray(found.log_evidence)


def named(prefix: str, posterior: epvi.Posterior) -> Answers:
    return {f"{prefix}: {name}": value for name, value in of_posterior(posterior)}


def of_demo() -> Answers:
    """The fits of examples/demo.py."""
    rows, _ = simulate_logistic(6000, 6, condition=20, seed=10)
    answers = {}
    for shards in (6, 1):
        answers |= named(f"demo, {shards} shards", epvi.fit(logistic, rows, shards, executor=1, progress=False))
    return answers


def of_families(num_rows: int = 1000, shards: int = 2) -> Answers:
    """The families and products of fit.py, and their predictions."""
    rows, held_out = families.simulated(num_rows, seed=0)
    answers: Answers = {}
    for name, family in families.FAMILIES.items():
        made = epvi.fit(logistic, rows, shards, inference=family, certify=False, executor=1, progress=False)
        answers |= named(f"fit, {name}", made)
        for way, product in families.WAYS.items():
            combined = epvi.combine(made.fits, product, seed=0)
            answers |= named(f"fit, {name}, {way}", combined)
            if name == families.DEFAULT:
                predictive = epvi.log_predictive(logistic, combined, held_out, num_samples=200, seed=0)
                answers[f"fit, {name}, {way}: log predictive"] = np.asarray(predictive)
    return answers


def write_tables(folder: Path, num_rows: int = 150) -> None:
    """Write a study and the rows of its sites: a constant, numbers, and a text category."""
    rng = np.random.default_rng(5)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.toml").write_text(STUDY)
    for site in SITES:
        age, dose, grade = rng.normal(50, 12, num_rows), rng.integers(0, 5, num_rows), rng.integers(0, 3, num_rows)
        ill = rng.logistic(size=num_rows) < (age - 50) / 10 - 0.4 * dose + 0.8 * grade
        words = np.array(["low", "middle", "high"])[grade]
        columns = zip(age.tolist(), dose.tolist(), words.tolist(), ill.astype(int).tolist(), strict=True)
        lines = [f"1,{a!r},{d},{g},{i}" for a, d, g, i in columns]
        (folder / f"{site}.csv").write_text("\n".join(["one,age,dose,grade,ill", *lines]) + "\n")


def run(*arguments: object) -> None:
    """Run a command of the command line in this process, without its output."""
    with contextlib.redirect_stdout(io.StringIO()):
        command_line([str(one) for one in arguments], standalone_mode=False)


def score(folder: Path, draws: str, number: int) -> list[Path]:
    """The scores of all sites for a file of draws."""
    files = [folder / f"scores-{number}-{site}.epvi" for site in SITES]
    for site, file in zip(SITES, files, strict=True):
        run(
            "score",
            folder / "study.toml",
            folder / draws,
            "--rows",
            folder / f"{site}.csv",
            "--shard",
            site,
            "-o",
            file,
        )
    return files


def make_files(folder: Path) -> None:
    """Write the files of every site and of the hub: two rounds of refinement, the last one confirmed."""
    write_tables(folder)
    for site in SITES:
        stats = folder / f"{site}.stats.epvi"
        run("stats", folder / "study.toml", "--rows", folder / f"{site}.csv", "-o", stats)
    run("pool", *(folder / f"{site}.stats.epvi" for site in SITES), "--into", folder / "study.toml")
    for site in SITES:
        file = folder / f"fit-{site}.epvi"
        run("shard", folder / "study.toml", "--rows", folder / f"{site}.csv", "--shard", site, "-o", file)
    run("combine", *sorted(folder.glob("fit-*.epvi")), "-o", folder / "posterior-1.epvi")
    run("certify", folder / "posterior-1.epvi", "--draws", folder / "draws-1.epvi", "--num-draws", 256, "--seed", 6)
    first = score(folder, "draws-1.epvi", 1)
    run("certify", folder / "posterior-1.epvi", *first, "-o", folder / "certified-1.epvi")
    second = folder / "posterior-2.epvi"
    run("refine", folder / "posterior-1.epvi", *first, "-o", second, "--draws", folder / "draws-2.epvi")
    run("refine", second, *score(folder, "draws-2.epvi", 2), "-o", folder / "posterior-3.epvi", "--last")


def of_files(folder: Path) -> Answers:
    """All arrays in the files, and the results of repeating the hub's computations from them."""
    answers: Answers = {}
    for file in sorted(folder.glob("*.epvi")):
        answers |= {f"{file.stem}: {name}": array for name, array in load_envelope(file).arrays.items()}
        loaded = None if file.name.endswith(".stats.epvi") else epvi.load(file)
        if isinstance(loaded, epvi.Posterior):
            answers |= named(file.stem, loaded)
    fits = [_only(file, epvi.ShardFit) for file in sorted(folder.glob("fit-*.epvi"))]
    posterior = epvi.combine(fits)
    answers |= named("combined again", posterior)
    scores = [_only(file, epvi.Scores) for file in sorted(folder.glob("scores-1-*.epvi"))]
    first = _only(folder / "posterior-1.epvi", epvi.Posterior)
    answers |= named("certified again", first.with_certificate(epvi.certify(first, scores)))
    answers |= named("refined again", epvi.refine(first, scores))
    return answers


def _only(file: Path, kind: type[T]) -> T:
    found = epvi.load(file)
    assert isinstance(found, kind), file
    return found


def differences(found: Answers, expected: Answers) -> dict[str, float]:
    """The largest difference of every quantity, relative to its largest entry; infinite if shapes differ."""
    made = {}
    for name in sorted({*found, *expected}):
        a, b = found.get(name), expected.get(name)
        if a is None or b is None or a.shape != b.shape or not np.array_equal(np.isfinite(a), np.isfinite(b)):
            made[name] = np.inf
            continue
        finite = np.isfinite(b)
        scale = np.max(np.abs(b[finite]), initial=np.finfo(float).tiny)
        made[name] = float(np.max(np.abs(a[finite] - b[finite]), initial=0.0) / scale)
    return made


def compare(found: Answers, expected: Answers) -> bool:
    """Print the difference of every quantity; return whether all are within the tolerance."""
    made = differences(found, expected)
    for name, off in made.items():
        print(f"{off:9.2e}  {name}{'' if off <= TOLERANCE else '   DIFFERS'}")
    worst = max(made.values(), default=np.inf)
    print(f"{len(made)} quantities, the worst off by {worst:.2e} ({TOLERANCE:g} is allowed)")
    return worst <= TOLERANCE


def answers_of(chosen: argparse.Namespace) -> Answers:
    if chosen.load is not None:
        return of_files(chosen.load)
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.files or Path(temporary)
        make_files(folder)
        return of_demo() | of_families() | of_files(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", type=Path, help="keep the answers in this .npz")
    what.add_argument("--compare", type=Path, help="compare with the answers in this .npz")
    parser.add_argument("--files", type=Path, help="keep the study's files in this folder")
    parser.add_argument("--load", type=Path, help="read this folder's files, and compare only what comes of them")
    chosen = parser.parse_args(arguments)
    answers = answers_of(chosen)
    if chosen.write is not None:
        np.savez_compressed(chosen.write, allow_pickle=False, **answers)
        print(f"{len(answers)} quantities are in {chosen.write}.")
        return 0
    with np.load(chosen.compare) as kept:
        expected = {name: kept[name] for name in kept.files if chosen.load is None or name in answers}
    return 0 if compare(answers, expected) else 1


if __name__ == "__main__":
    sys.exit(main())
