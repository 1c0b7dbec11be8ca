"""The product methods of epvi, registered."""

from epvi.hub.product.anchored import Anchored
from epvi.hub.product.chain import Chain
from epvi.hub.product.exact import Exact
from epvi.hub.product.result import PRODUCTS
from epvi.hub.product.subset import Subset

for _method in (Exact, Chain, Subset, Anchored):
    PRODUCTS.add(_method)

__all__ = ["PRODUCTS"]
