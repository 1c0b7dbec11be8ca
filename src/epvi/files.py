"""Reading any file that epvi has written: `load`."""

import dataclasses
import os

from epvi import envelope
from epvi.envelope import Malformed
from epvi.errors import EpviError
from epvi.handover import ShardFit, unpack_fit
from epvi.hub.posterior import Posterior
from epvi.hub.stored import unpack_posterior


def load(path: str | os.PathLike) -> ShardFit | Posterior:
    """The shard fit or the posterior in a `.epvi` file.

    A file from elsewhere can be wrong, which is an `EpviError` that names it, but it cannot run code.
    """
    content = envelope.load(path)
    try:
        if content.kind == "shard":
            return dataclasses.replace(unpack_fit(content), file=os.fspath(path))
        if content.kind == "posterior":
            return unpack_posterior(content)
    except Malformed as error:
        raise envelope.unusable(path, error) from error
    raise EpviError(f"{envelope.shown(path)} holds {content.kind}: pass a file of a shard's fit or of a posterior.")
