"""Where the rows are: this wing never imports the hub, and the hub never imports it."""

from epvi.site.answer import score
from epvi.site.fit.inference import Inference
from epvi.site.fit.nvi import NVI
from epvi.site.model.model import Model
from epvi.site.rows.rows import Rows
from epvi.site.shard import fit_shard
from epvi.site.standin import stand_in

__all__ = ["NVI", "Inference", "Model", "Rows", "fit_shard", "score", "stand_in"]
