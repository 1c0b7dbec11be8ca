"""Products of Gaussian mixtures: one verb, one file per way."""

from epvi.ground.status import Status
from epvi.hub.product.anchored import Anchored
from epvi.hub.product.chain import Chain
from epvi.hub.product.exact import Exact
from epvi.hub.product.multiply import multiply
from epvi.hub.product.result import ProductMixture
from epvi.hub.product.subset import Subset

__all__ = ["Anchored", "Chain", "Exact", "ProductMixture", "Status", "Subset", "multiply"]
