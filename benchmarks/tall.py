"""Logistic regression on 5,000,000 rows: the posterior by epvi, and scikit-learn's point estimate.

Run: python benchmarks/tall.py (an hour on two cores, of which SVI takes 40 minutes; --quick for 200,000 rows without
SVI in a few minutes; --only PART for one part). Needs the extra `bench`. A tenth of the rows is held out. Times are
medians of alternating runs of all peers, after one run of each to warm up.

main      epvi, scikit-learn, Newton's method (the reference for means and sds), and a plain sum over the rows
cold      from a file to a saved answer in fresh interpreters, and the memory of all processes
svi       NumPyro's SVI until it has the same posterior
growth    time by rows and columns
models    Poisson regression and topographic latent source analysis
profile   where the time of a warm run goes
certificate   cost of a certificate and a refinement; all other parts measure the first round only
flights   the table of main for three million real flights, if the file is available
"""

import argparse
import dataclasses
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import peers
from certificate import certificate
from cold import cold
from flights import USUAL, flights
from growth import growth, models
from rounds import Turn, in_turn, median_seconds, timed, verdict
from stages import stages
from susy import Rows, held_out, susy_like

import epvi
from epvi.models import logistic

FULL_SIZE, QUICK_SIZE = 5_000_000, 200_000
TWO, ONE, MANY = "epvi, two workers", "epvi, one worker, M = 1", "epvi, one worker, M = 20"
POINT, NEWTON, SUM = "scikit-learn", "Newton, float64", "np.sum of x"
SHARDS = {TWO: (2, 2), ONE: (1, 1), MANY: (20, 1)}  # numbers of shards and of workers
BITS_A_SECOND = 1e9  # of the link from the sites to the hub
# Targets: time of two workers relative to scikit-learn; speed-ups of two workers over one, and of 20 machines over one;
# time of all passes in plain sums over the rows; differences from the full-data fit in nats and relative in sds;
# speed-up over SVI.
AS_POINT, BY_TWO, BY_MANY, SUMS, NATS, SD_ERROR, AS_SVI = 0.5, 1.8, 15, 40, 1e-4, 0.02, 50


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to run."""

    num_rows: int
    repeats: int
    seed: int
    svi_seconds: float
    flights: Path

    @property
    def scale(self) -> float:
        return self.num_rows / FULL_SIZE

    def rows(self) -> tuple[Rows, Rows]:
        """To fit, and held out."""
        return held_out(susy_like(self.num_rows, self.seed))


class Accuracy(NamedTuple):
    """Accuracy of an answer on held-out rows."""

    nll: float  # per row
    right: float  # fraction of labels predicted right
    mean: np.ndarray
    sd: np.ndarray


class Clock(NamedTuple):
    """Time by the paper's clock, where every shard has a machine of its own; in seconds."""

    slowest: float  # fit of the slowest shard
    transfer: float  # of all files to the hub
    product: float


def fit(rows: Rows, name: str, seed: int) -> epvi.Posterior:
    shards, workers = SHARDS[name]
    return epvi.fit(logistic, rows, shards, executor=workers, seed=seed, certify=False)


def accuracy(answer: epvi.Posterior | peers.Fitted, rows: Rows, seed: int) -> Accuracy:
    """Accuracy on held-out rows."""
    if isinstance(answer, peers.Fitted):
        mean, sd = answer.found.mean, answer.found.sd
        return Accuracy(peers.nll(answer.found, rows), peers.accuracy(mean, rows), mean, sd)
    w = answer.space.slices["w"]
    mean, sd = np.asarray(answer.mixture.mean())[w], np.asarray(answer.mixture.sd())[w]
    nll = -epvi.log_predictive(logistic, answer, rows, num_samples=100, seed=seed)
    return Accuracy(nll, peers.accuracy(mean, rows), mean, sd)


def by_the_papers_clock(fits: Sequence[epvi.ShardFit]) -> Clock:
    """Sites write their files in parallel, one link transfers them in turn, and the hub reads and multiplies them."""
    with tempfile.TemporaryDirectory() as folder:
        saved = [timed(partial(one.save, Path(folder) / f"{one.shard}.epvi")) for one in fits]
        size = sum(turn.result.stat().st_size for turn in saved)
        loaded = timed(lambda: [epvi.load(turn.result) for turn in saved])
    transfer = max(turn.seconds for turn in saved) + 8 * size / BITS_A_SECOND + loaded.seconds
    return Clock(max(one.seconds for one in fits), transfer, timed(lambda: epvi.combine(loaded.result)).seconds)


HEAD = (
    f"{'':26s}{'wall':>9s}{'to scikit-learn':>17s}{'passes':>8s}{'NLL':>11s}{'right':>9s}{'sd ratios':>18s}"
    f"{'means off':>11s}"
)


def line(name: str, turns: dict[str, list[Turn]], made: dict[str, Accuracy]) -> str:
    """A row of the table; sds as ratios to the reference's, errors of means in its sds."""
    seconds = median_seconds(turns[name])
    begin = f"{name:26s}{seconds:7.3f} s{seconds / median_seconds(turns[POINT]):16.3f}x"
    if name == SUM:
        return begin
    answer, reference, is_point = turns[name][-1].result, made[NEWTON], name == POINT
    passes = answer.iterations if isinstance(answer, peers.Fitted) else max(one.passes for one in answer.fits)
    ratios = made[name].sd / reference.sd
    away = np.max(np.abs(made[name].mean - reference.mean) / reference.sd)
    sds = "-" if is_point else f"{np.min(ratios):.4f} to {np.max(ratios):.4f}"
    return f"{begin}{passes:8d}{made[name].nll:11.6f}{100 * made[name].right:7.2f} %{sds:>18s}{away:11.4f}"


def table(
    rows: Rows, test: Rows, names: Sequence[str], plan: Plan
) -> tuple[dict[str, list[Turn]], dict[str, Accuracy]]:
    """Run the peers alternately and print their rows of the table."""
    runs: dict[str, Callable[[], object]] = {
        **{name: partial(fit, rows, name, plan.seed) for name in SHARDS},
        POINT: lambda: peers.scikit_learn(rows),
        NEWTON: lambda: peers.newton(rows),
        SUM: lambda: np.sum(rows["x"]),
    }
    turns = in_turn({name: runs[name] for name in names}, plan.repeats)
    made = {name: accuracy(turns[name][-1].result, test, plan.seed) for name in names if name != SUM}
    print(f"{len(rows['y']):,} rows x {rows['x'].shape[1]} columns, and {len(test['y']):,} held out, seed {plan.seed}")
    print(f"{peers.scikit_learn_said()}\n{HEAD}")
    print("\n".join(line(name, turns, made) for name in names))
    return turns, made


def main_part(plan: Plan) -> None:
    rows, test = plan.rows()
    turns, made = table(rows, test, [TWO, ONE, MANY, POINT, NEWTON, SUM], plan)
    clocks = [by_the_papers_clock(turn.result.fits) for turn in turns[MANY]]
    many = Clock(*np.median(clocks, axis=0))
    full = float(np.median([turn.result.fits[0].seconds for turn in turns[ONE]]))
    work = float(np.median([sum(map(_pass_seconds, turn.result.fits)) for turn in turns[TWO]]))
    print(
        f"{SHARDS[MANY][0]} shards by the paper's clock: slowest shard {many.slowest:.3f} s, transfer"
        f" {many.transfer:.3f} s, product {many.product:.3f} s; the full-data fit takes {full:.3f} s"
    )
    seconds = {name: median_seconds(turns[name]) for name in turns}
    to_point, to_one = seconds[TWO] / seconds[POINT], seconds[ONE] / seconds[TWO]
    to_full, sums = full / sum(many), work / seconds[SUM]
    loss = made[TWO].nll - made[ONE].nll
    sd = float(np.max(np.abs(made[TWO].sd / made[ONE].sd - 1)))
    print(verdict(to_point <= AS_POINT, f"two workers at most {AS_POINT}x scikit-learn, warm; {to_point:.2f}x"))
    print(verdict(to_one >= BY_TWO, f"two workers at least {BY_TWO}x faster than one; {to_one:.2f}x"))
    print(verdict(to_full >= BY_MANY, f"M = 20 at least {BY_MANY}x faster by the paper's clock; {to_full:.1f}x"))
    print(verdict(sums <= SUMS, f"all passes of both shards at most {SUMS} plain sums over the rows; {sums:.1f}"))
    print(verdict(abs(loss) <= NATS, f"two shards within {NATS:g} nats of the full-data fit; {loss:+.1e}"))
    print(verdict(sd <= SD_ERROR, f"sds of two shards within {SD_ERROR:.0%} of the full-data fit's; {sd:.2%}"))


def _pass_seconds(one: epvi.ShardFit) -> float:
    """The time of a fit's passes over its rows; of the whole fit with older versions of epvi."""
    return getattr(one, "pass_seconds", one.seconds)


def flights_part(plan: Plan) -> None:
    if not plan.flights.exists():
        print(f"No flights: {plan.flights.name} is not there; name it by --flights")
        return
    most = None if plan.num_rows >= FULL_SIZE else plan.num_rows
    rows, test = held_out(flights(plan.flights, most, plan.seed))
    turns, made = table(rows, test, [TWO, ONE, POINT, NEWTON, SUM], plan)
    ratio, loss = median_seconds(turns[TWO]) / median_seconds(turns[POINT]), made[TWO].nll - made[ONE].nll
    print(verdict(ratio <= AS_POINT, f"two workers at most {AS_POINT}x scikit-learn, warm; {ratio:.2f}x"))
    print(verdict(abs(loss) <= NATS, f"two shards within {NATS:g} nats of the full-data fit; {loss:+.1e}"))


def svi_part(plan: Plan) -> None:
    rows, test = plan.rows()
    seconds = median_seconds(in_turn({TWO: partial(fit, rows, TWO, plan.seed)}, plan.repeats)[TWO])
    reference = peers.newton(rows).found
    print(
        f"SVI on {len(rows['y']):,} rows until its held-out NLL is within {peers.NATS:g} nats of the reference's and"
        f" its sds within {peers.SD_ERROR:.0%}, or for {plan.svi_seconds:.0f} s; {TWO}: {seconds:.2f} s"
    )
    print(f"{'':34s}{'seconds':>9s}{'to epvi':>10s}{'steps':>9s}{'there':>7s}{'NLL above':>12s}{'sd ratios':>18s}")
    runs: list[peers.Run] = []
    for kind in peers.KINDS:
        runs.append(run := peers.svi(kind, rows, test, reference, plan.svi_seconds))
        ratios = f"{np.min(run.ratios):.3f} to {np.max(run.ratios):.3f}"
        print(
            f"{kind.name:34s}{run.seconds:9.1f}{run.seconds / seconds:9.0f}x{run.steps:9,}"
            f"{'yes' if run.reached else 'no':>7s}{run.nll:12.1e}{ratios:>18s}",
            flush=True,
        )
    there = [run.seconds for run in runs if run.reached]
    ratio = min(there or [run.seconds for run in runs]) / seconds
    said = f"{ratio:.0f}x" if there else f"more than {ratio:.0f}x: none got there"
    met = ratio >= AS_SVI if there or ratio >= AS_SVI else None
    print(verdict(met, f"epvi at least {AS_SVI}x faster than the best of these; {said}"))


PARTS: dict[str, Callable[[Plan], None]] = {
    "main": main_part,
    "cold": lambda plan: cold(plan.rows()[0], plan.seed, plan.repeats),
    "svi": svi_part,
    "growth": lambda plan: growth(susy_like(plan.num_rows, plan.seed), plan.seed, plan.repeats, plan.scale),
    "models": lambda plan: models(plan.seed, plan.repeats, plan.scale),
    "profile": lambda plan: stages(plan.rows()[0], plan.seed),
    "certificate": lambda plan: certificate(plan.rows()[0], plan.seed, plan.repeats),
    "flights": flights_part,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SIZE:,} rows, every peer once, no SVI")
    parser.add_argument("--rows", type=int, help=f"{FULL_SIZE:,} unless said; other sizes follow")
    parser.add_argument("--only", choices=PARTS, help="one part")
    parser.add_argument("--seed", type=int, default=0, help="of the rows and the fits")
    parser.add_argument("--repeats", type=int, help="rounds of peers, after the one that warms up (3)")
    parser.add_argument("--svi-minutes", type=float, default=10.0, help="the most for each kind of SVI")
    parser.add_argument("--flights", type=Path, default=USUAL, help="flights-3m.parquet of vega-datasets")
    chosen = parser.parse_args(arguments)
    num_rows = chosen.rows or (QUICK_SIZE if chosen.quick else FULL_SIZE)
    repeats = chosen.repeats or (1 if chosen.quick else 3)
    plan = Plan(num_rows, repeats, chosen.seed, 60 * chosen.svi_minutes, chosen.flights)
    for part in [chosen.only] if chosen.only else [name for name in PARTS if name != "svi" or not chosen.quick]:
        start = time.perf_counter()
        try:
            PARTS[part](plan)
        except epvi.EpviError as refusal:
            print(verdict(False, f"all of {part}: epvi refused. {refusal}"))
        print(f"({part}: {time.perf_counter() - start:.0f} s)\n", flush=True)


if __name__ == "__main__":
    main()
