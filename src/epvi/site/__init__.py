"""Where the rows are: this wing never imports the hub, and the hub never imports it."""

from epvi.site.fit.inference import Inference
from epvi.site.fit.nvi import NVI
from epvi.site.model.model import Model
from epvi.site.rows.rows import Rows
from epvi.site.tasks.fit_shard import fit_shard
from epvi.site.tasks.score import score
from epvi.site.tasks.stand_in import stand_in

__all__ = ["NVI", "Inference", "Model", "Rows", "fit_shard", "score", "stand_in"]
