"""False alarms of the certificate: 50 fits of a hierarchical logistic regression with epvi's defaults.

Run: python benchmarks/verdicts.py [--quick]. Every run has its own rows, split and seed. The model is right in all of
them, so "do not trust" is a false alarm. Target: at most 2 of 50.
"""

import argparse
from collections import Counter

import rounds
from rich.progress import track

import epvi
from epvi.models import logistic, simulate_logistic

NOT = "do not trust"
# Number of runs by numbers of rows and of shards.
SIZES = {(2_000, 10): 20, (2_000, 20): 10, (20_000, 10): 10, (20_000, 20): 10}
COLUMNS, MOST_FALSE_ALARMS = 8, 2


def certificate(model: epvi.Model, num_rows: int, num_shards: int, seed: int, refine: int | None) -> epvi.Certificate:
    rows, _ = simulate_logistic(num_rows, COLUMNS, intercept=True, seed=1000 + seed)
    posterior = epvi.fit(model, rows, num_shards, refine=refine, executor=1, seed=seed, progress=False)
    assert posterior.certificate is not None
    return posterior.certificate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the runs")
    parser.add_argument("--refine", type=int, default=None, help="rounds of refinement (epvi's default unless said)")
    said = parser.parse_args()
    model = epvi.Model(logistic)
    planned = [size for size, count in SIZES.items() for _ in range(count // 10 if said.quick else count)]
    found, alarms = {size: Counter() for size in SIZES}, []
    for seed, size in enumerate(track(planned, description="runs")):
        one = certificate(model, *size, seed, said.refine)
        found[size][one.verdict] += 1
        if one.verdict == NOT:
            alarms.append(f"N = {size[0]}, M = {size[1]}, seed {seed}: {one.text}")
    for (num_rows, num_shards), counts in found.items():
        told = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
        print(f"N = {num_rows:6,d}, M = {num_shards:2d}: {told}")
    print("\n".join(alarms))
    met = None if said.quick else len(alarms) <= MOST_FALSE_ALARMS
    print(rounds.verdict(met, f"{len(planned) - len(alarms)} of {len(planned)} trusted, at most 2 of 50 false alarms"))


if __name__ == "__main__":
    main()
