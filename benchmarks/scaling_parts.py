"""The parts of scaling.py: which methods run on which works, and the targets."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import scaling_methods as methods
from scaling_data import CROSSED, DEMO, DENSE, GROUPS, INDICATORS, NUMERIC, RARE, SUSY, Work, work_of
from scaling_race import Race, Racer, Result
from scaling_table import MET, OPEN, SHOWN, Line, compared, judged, slope

# Fewer rows per shard, column or group are another problem: smaller runs leave such sizes out. Judgement.
LEAST_ROWS_A_SHARD, LEAST_ROWS_A_COLUMN, LEAST_ROWS_A_GROUP = 50, 30, 10
# Shards of all parts that do not vary them.
USUAL_SHARDS = 4
# Most seconds of the demo's fit, once warm and at the first call of a fresh process whose cache is filled.
WARM_SECONDS, FIRST_SECONDS = 0.25, 4.0
# Most memory of 1,000 shards relative to two; least part of a bare pass's speed-up by two processes.
MOST_MEMORY, LEAST_OF_BARE = 1.2, 0.9
# By the paper's clock 20 shards must be faster than all rows by the first factor, and by the second where all rows take
# as many seconds as the third says.
SPEED_UP, LONG_SPEED_UP, LONG_SECONDS = 10, 15, 5
# Largest exponents of time: in rows; in shards, without and with rare categories; in columns d, because a Hessian costs
# N d² while d is small beside N; in groups G, because sums by group cost N + G.
BY_ROWS, BY_SHARDS, BY_SHARDS_RARE, BY_COLUMNS, BY_GROUPS = 1.05, 0.2, 0.3, 2.0, 1.0

# Targets: largest ratios of a time to that of M = 2, by M.
SHARDS = {20: 1.3, 200: 2.0, 1000: 3.0}
RARE_SHARDS = {20: 1.5, 100: 3.0}
# Rows and columns, rows and groups.
WIDE = ((200_000, 100), (100_000, 300), (100_000, 1000))
GROUP_SIZES = ((100_000, 200), (200_000, 1000), (1_000_000, 10_000))


@dataclasses.dataclass
class Plan:
    """How to run, and what was found so far."""

    scale: float
    repeats: int
    limit: float
    seed: int
    notes: list[str] = dataclasses.field(default_factory=list)
    found: dict[Racer, Result] = dataclasses.field(default_factory=dict)

    def work(self, kind: str, num_rows: int, size: int) -> Work:
        return work_of(kind, num_rows, size, self.scale, self.seed)

    def race(self, racers: Sequence[Racer]) -> Mapping[Racer, Result]:
        """Results of all; those that were found before are not run again."""
        with Race(self.repeats, self.limit) as race:
            self.found |= race.run([racer for racer in racers if racer not in self.found])
        return {racer: self.found[racer] for racer in racers}


def _epvi(work: Work, num_shards: int = USUAL_SHARDS) -> Racer:
    return Racer(methods.EPVI, work, num_shards)


# A fit, what it is beside, and the largest ratio of their times; None if it is only shown.
Target = tuple[Racer, Racer, float | None]


def _lines(plan: Plan, targets: Sequence[Target], *, by: str = methods.REFERENCE, full: bool = False) -> list[Line]:
    """Race all racers of the targets, which have one work, beside the reference that a method gives."""
    if not targets:
        return []
    reference = Racer(by, targets[0][0].work)
    racers = dict.fromkeys([reference, *(racer for ours, beside, _ in targets for racer in (ours, beside))])
    found = plan.race(list(racers))
    answer = found[reference].answer
    if answer is None:
        plan.notes.append(f"{reference.work}: no reference, so means and sds were not checked")
    else:
        known = answer.note or f"{by}'s estimates and standard errors"
        plan.notes.append(f"{reference.work}: the reference is {known} ({found[reference].said} s)")
    moments = answer.moments if answer else None
    return [
        compared((ours, found[ours]), (beside, found[beside]), most, moments, full=full)
        for ours, beside, most in targets
    ]


def shards(plan: Plan) -> list[Line]:
    work = plan.work(DENSE, 1_000_000, 18)
    return _lines(plan, _by_shards(work, SHARDS, {methods.NEWTON: 1.5, methods.LBFGS: None}))


def rare(plan: Plan) -> list[Line]:
    work = plan.work(RARE, 300_000, NUMERIC + INDICATORS)
    return _lines(plan, _by_shards(work, RARE_SHARDS, {methods.NEWTON: 3.0, methods.GLUM: 1.2}))


def _by_shards(work: Work, ratios: Mapping[int, float], peers: Mapping[str, float | None]) -> list[Target]:
    """Two shards beside the peers, and more shards beside two."""
    two = _epvi(work, 2)
    allowed = [m for m in (2, *ratios) if work.num_rows >= LEAST_ROWS_A_SHARD * m]
    more = [(_epvi(work, m), two, ratios[m]) for m in allowed if m > 2]
    return [(two, Racer(peer, work), most) for peer, most in peers.items() if 2 in allowed] + more


def wide(plan: Plan) -> list[Line]:
    lines = []
    for work in _allowed([plan.work(DENSE, *size) for size in WIDE], LEAST_ROWS_A_COLUMN):
        beside = {methods.NEWTON: 3.0, methods.LBFGS: None}
        lines += _lines(plan, [(_epvi(work), Racer(peer, work), most) for peer, most in beside.items()], full=True)
    return lines


def groups(plan: Plan) -> list[Line]:
    lines, works = [], _allowed([plan.work(GROUPS, *size) for size in GROUP_SIZES], LEAST_ROWS_A_GROUP)
    for work in works:
        targets: list[Target] = [(_epvi(work), Racer(methods.GPBOOST, work), 5.0)]
        # At least 50 times faster, at the first size, where NUTS ends in a reasonable time.
        targets += [(_epvi(work), Racer(methods.NUMPYRO, work), 1 / 50)] if work == works[0] else []
        lines += _lines(plan, targets)
    return lines


def crossed(plan: Plan) -> list[Line]:
    work = plan.work(CROSSED, 200_000, 500)
    return _lines(plan, [(_epvi(work), Racer(methods.GPBOOST, work), None)], by=methods.GPBOOST)


def tall(plan: Plan) -> list[Line]:
    work = plan.work(SUSY, 5_000_000, 18)
    # The time that benchmarks/tall.py asks for: half of scikit-learn's.
    lines = _lines(plan, [(Racer(methods.FIRST_ROUND, work, 2), Racer(methods.LBFGS, work), 0.5)])
    passes, clock = Racer(methods.PASSES, work, 2), Racer(methods.CLOCK, work, 20)
    found = plan.race([passes, clock])
    sped, bare = _figures(found[passes], "fit", "bare")
    cells = judged(sped / bare, LEAST_OF_BARE, "", at_least=True)
    lines.append(_figure_line(passes, cells, f"speed-up {sped:.2f}", f"bare pass {bare:.2f}"))
    full, split = _figures(found[clock], "full", "shards")
    least = LONG_SPEED_UP if full >= LONG_SECONDS else SPEED_UP
    cells = judged(full / split, least, "x", at_least=True)
    return [*lines, _figure_line(clock, cells, f"{split:.3g}", f"all rows {full:.3g}")]


def demo(plan: Plan) -> list[Line]:
    work = Work(DEMO, 6000, 6, plan.seed)
    warm, first = _epvi(work, 6), Racer(methods.FRESH, work, 6)
    lines = _lines(plan, [(warm, warm, None)])
    seconds = plan.found[warm].median
    figure, target, outcome = judged(seconds, WARM_SECONDS, " s")
    outcome = lines[0].outcome if outcome == MET and lines[0].outcome != SHOWN else outcome
    lines = [lines[0]._replace(beside="", its_seconds="", figure=figure, target=target, outcome=outcome)]
    empty, filled = _figures(plan.race([first])[first], "empty", "filled")
    cells = judged(filled, FIRST_SECONDS, " s")
    return [*lines, _figure_line(first, cells, f"{filled:.3g}", f"empty cache {empty:.3g}")]


def memory(plan: Plan) -> list[Line]:
    work = plan.work(DENSE, 1_000_000, 18)
    many = max(m for m in (2, *SHARDS) if m == 2 or work.num_rows >= LEAST_ROWS_A_SHARD * m)
    racers = [Racer(methods.MEMORY, work, m) for m in (2, many)]
    found = plan.race(racers)
    few, more = (_figures(found[racer], "peak")[0] / 1e9 for racer in racers)
    cells = judged(more / few, MOST_MEMORY, "x")
    return [_figure_line(racers[1], cells, f"{more:.2f} GB", f"M = 2: {few:.2f} GB")]


def growth(plan: Plan) -> list[Line]:
    dense, rare_work = plan.work(DENSE, 1_000_000, 18), plan.work(RARE, 300_000, NUMERIC + INDICATORS)
    by_rows = [plan.work(DENSE, num_rows, 18) for num_rows in (100_000, 300_000, 1_000_000, 3_000_000)]
    by_columns = _allowed([plan.work(DENSE, 100_000, size) for size in (10, 30, 100, 300)], LEAST_ROWS_A_COLUMN)
    by_groups = _allowed([plan.work(GROUPS, 200_000, size) for size in (50, 200, 1000, 4000)], LEAST_ROWS_A_GROUP)
    series: list[tuple[str, list[Racer], list[int], float]] = [
        ("rows N", [_epvi(work, 2) for work in by_rows], [work.num_rows for work in by_rows], BY_ROWS),
        ("shards M", *_growing(dense, SHARDS), BY_SHARDS),
        ("shards M, rare categories", *_growing(rare_work, RARE_SHARDS), BY_SHARDS_RARE),
        ("columns d", [_epvi(work) for work in by_columns], [work.size for work in by_columns], BY_COLUMNS),
        ("groups G", [_epvi(work) for work in by_groups], [work.size for work in by_groups], BY_GROUPS),
    ]
    lines = []
    for name, racers, sizes, most in series:
        if not racers:
            continue
        found = plan.race(racers)
        warm = [found[racer].compiled and bool(found[racer].seconds) for racer in racers]
        times = [found[racer].median if known else math.nan for racer, known in zip(racers, warm, strict=True)]
        figure, target, outcome = judged(slope(sizes, times), most, "")
        outcome = outcome if all(warm) else OPEN
        shown = ", ".join(f"{size:,}: {found[racer].said}" for size, racer in zip(sizes, racers, strict=True))
        plan.notes.append(f"growth in {name}, seconds by size: {shown}")
        about = f"growth in {name}", methods.EPVI, "", f"{sizes[0]:,} to {sizes[-1]:,}", ""
        lines.append(Line(*about, figure, target, outcome=outcome))
    return lines


def _growing(work: Work, ratios: Mapping[int, float]) -> tuple[list[Racer], list[int]]:
    sizes = [m for m in (2, *ratios) if work.num_rows >= LEAST_ROWS_A_SHARD * m]
    return [_epvi(work, m) for m in sizes], sizes


def _allowed(works: Sequence[Work], least: int) -> list[Work]:
    """Those with at least so many rows per column or group."""
    return [work for work in works if work.num_rows >= least * work.size]


def _figures(result: Result, *names: str) -> list[float]:
    """Figures of a result; NaN if it has none."""
    found = (result.answer.figures if result.answer else None) or {}
    return [found.get(name, math.nan) for name in names]


def _figure_line(racer: Racer, cells: tuple[str, str, str], ours: str, beside: str) -> Line:
    figure, target, outcome = cells
    return Line(str(racer.work), str(racer), ours, beside, "", figure, target, outcome=outcome)


PARTS: dict[str, Callable[[Plan], list[Line]]] = {
    "shards": shards,
    "rare": rare,
    "wide": wide,
    "groups": groups,
    "crossed": crossed,
    "tall": tall,
    "demo": demo,
    "memory": memory,
    "growth": growth,
}
