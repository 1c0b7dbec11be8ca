"""The part `certificate` of tall.py: the cost of the certificate and of refinement.

Times the first round alone, with a certificate, with a certificate and one refinement, and with the defaults of `fit`,
in alternating runs; and once the certificate with exact scores (all rows at every draw). Means and sds corrected with
the usual scores are compared with those corrected with exact scores.
"""

from functools import partial

import numpy as np
from rounds import in_turn, median_seconds, timed, verdict
from susy import Rows

import epvi
from epvi.models import logistic

FIRST, CERTIFIED, REFINED, USUAL = "first round", "with certificate", "and one refinement", "unless told"
EXACT = "with exact certificate"
SETTINGS = {
    FIRST: {"certify": False},
    CERTIFIED: {"refine": 0},
    REFINED: {"refine": 1},
    USUAL: {},
}


def certificate(rows: Rows, seed: int, repeats: int) -> None:
    """Print the costs, and whether certificate and refinement together take no longer than the first round."""
    run = partial(epvi.fit, logistic, rows, 2, executor=2, seed=seed, progress=False)
    turns = in_turn({name: partial(run, **said) for name, said in SETTINGS.items()}, repeats)
    seconds = {name: median_seconds(turns[name]) for name in SETTINGS}
    print(f"{len(rows['y']):,} rows x {rows['x'].shape[1]} columns, two shards on two workers, seed {seed}")
    exact = timed(partial(run, certify=epvi.Scoring(exact=True), refine=0))
    more = exact.seconds - seconds[FIRST]
    made = {name: turns[name][-1].result for name in SETTINGS} | {EXACT: exact.result}
    for name, took in (seconds | {EXACT: exact.seconds}).items():
        print(f"{name:24s}{took:8.3f} s{took / seconds[FIRST]:8.2f}x   {said_of(made[name])}")
    cheap, whole = (one.summary() for one in (turns[CERTIFIED][-1].result, exact.result))
    away = np.max(np.abs(cheap.mean - whole.mean) / whole.sd)
    ratios = cheap.sd / whole.sd
    print(
        f"corrected means of the usual scores are within {away:.4f} sds of those of exact ones, sds within"
        f" {np.max(np.abs(ratios - 1)):.2%}; exact scores take {more / (seconds[CERTIFIED] - seconds[FIRST]):.0f} times"
        " as long"
    )
    cost = (seconds[REFINED] - seconds[FIRST]) / seconds[FIRST]
    print(verdict(cost <= 1, f"certificate and one refinement at most as long as the first round; {cost:.2f}x"))


def said_of(posterior: epvi.Posterior) -> str:
    found = posterior.certificate
    return "" if found is None else f"{found.verdict}, {found.ess:,.0f} of {found.num_draws:,}, doubt {found.doubt:.3f}"
