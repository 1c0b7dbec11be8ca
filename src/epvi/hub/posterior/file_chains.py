"""Write and read the draws of NUTS that a certificate may have."""

from typing import Any

import numpy as np

from epvi.hub.trust.chains import Chains
from epvi.wire.answer import read_array
from epvi.wire.envelope import Envelope, Malformed
from epvi.wire.record import Record

# Draws and steps that a file may claim. Judgement: far above what anybody runs.
_MOST = 2**31
# Draws of a chain from which on R-hat can be computed.
_LEAST_DRAWS = 4


def describe_chains(chains: Chains | None) -> dict[str, Any] | None:
    """The chains without their draws, as JSON."""
    if chains is None:
        return None
    return {"divergences": chains.divergences, "num_warmup": chains.num_warmup, "seconds": round(chains.seconds, 3)}


def chains_arrays(chains: Chains | None, prefix: str) -> dict[str, np.ndarray]:
    """Their draws, by name."""
    return {} if chains is None else {f"{prefix}chains": chains.theta}


def read_chains(record: Record, content: Envelope, prefix: str) -> Chains:
    """The chains, checked; their draws are of all parameters, with group effects."""
    theta = read_array(content, f"{prefix}chains", (None, None, None))
    if theta.shape[0] < 1 or theta.shape[1] < _LEAST_DRAWS:
        raise Malformed(f"its {prefix}chains are not chains of at least {_LEAST_DRAWS} draws")
    divergences, num_warmup = (record.whole(name, 0, _MOST) for name in ("divergences", "num_warmup"))
    return Chains(theta, divergences, num_warmup, record.number("seconds"))
