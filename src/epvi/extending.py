"""The door for other builders: their own structures, inferences, products and methods, known by name everywhere."""

from typing import TypeVar

from epvi.gaussian.structure import Structure
from epvi.gaussian.structures import STRUCTURES
from epvi.ground.errors import EpviError
from epvi.ground.registry import Registry
from epvi.hub.product.known import PRODUCTS
from epvi.hub.product.result import Product
from epvi.hub.samples.method import METHODS, DrawsMethod
from epvi.site.fit.inference import INFERENCES, Inference

C = TypeVar("C", bound=type)

_KINDS: tuple[tuple[type, Registry], ...] = (
    (Structure, STRUCTURES),
    (Inference, INFERENCES),
    (Product, PRODUCTS),
    (DrawsMethod, METHODS),
)


def register(choice: C) -> C:
    """Make a `Structure`, `Inference`, `Product` or `DrawsMethod` known by the lower-case name of its class.

    Files are then written and read with it, and the command line and study.toml name it. Decorates a class. A package
    whose module does so names it as an entry point of the group "epvi.plugins".
    """
    for base, registry in _KINDS:
        if isinstance(choice, type) and issubclass(choice, base):
            return registry.add(choice)
    kinds = ", ".join(base.__name__ for base, _ in _KINDS)
    raise EpviError(f"{choice!r} is none of the kinds that can be registered: pass a subclass of one of {kinds}.")
