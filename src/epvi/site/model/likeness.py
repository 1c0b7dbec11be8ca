"""Whether two models are the same: a key of all that a function's outcome can depend on, as it is now.

Takes functions and values; gives a hash of code, defaults, closures and the globals that the code refers to, by their
contents, or None when anything is met that cannot be compared for certain. Models with one key share what was compiled,
so a key that is too narrow would give another model's answers: in doubt there is none.
"""

import builtins
import dis
import functools
import hashlib
import sys
import types
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import jax
import numpy as np

from epvi.ground.float64 import is_traced

# What these packages define is known by its name: nobody changes it while a program runs.
_LIBRARIES = frozenset(
    {
        *("builtins", "collections", "epvi", "equinox", "functools", "itertools", "jax", "jaxlib", "jaxtyping", "math"),
        *("numpy", "numpyro", "operator", "scipy", "typing"),
    }
)
# Modules among them that give another number each time.
_STATEFUL = frozenset({"numpy.random"})
# Ways to reach what the code does not name.
_HIDDEN = frozenset(
    {"__import__", "compile", "delattr", "eval", "exec", "getattr", "globals", "input", "locals", "open", "setattr"}
    | {"super", "vars"}
)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented), Fraction, range)
_OF_CLASSES = frozenset({"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__firstlineno__"})


class _DoubtError(Exception):
    """Something that cannot be compared."""


def likeness(parts: Any) -> bytes | None:
    """The key of some functions and values; None when they cannot be compared."""
    found = _Walk()
    try:
        found.add(parts)
    except (_DoubtError, RecursionError):
        return None
    return found.digest.digest()


class _Walk:
    """Everything that can be reached, in one order, each thing once."""

    def __init__(self) -> None:
        self.digest = hashlib.blake2b(digest_size=32)
        # By identity, and held, so that no other object gets the same one meanwhile.
        self._met: dict[int, tuple[int, Any]] = {}

    def add(self, value: Any) -> None:
        """Take one value into the key."""
        if type(value) in _PLAIN:
            self._say(type(value).__name__, repr(value))
            return
        if id(value) in self._met:
            self._say("again", str(self._met[id(value)][0]))
            return
        # Whether equal tuples are one object is chance.
        if type(value) is not tuple:
            self._met[id(value)] = len(self._met), value
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            self._array(value)
        elif isinstance(value, types.ModuleType):
            self._module(value, (), set())
        elif name := _library_name(value):
            self._say("library", *name)
        elif type(value) in _WAYS:
            self._say(type(value).__name__)
            _WAYS[type(value)](self, value)
        elif isinstance(value, type):
            self._class(value)
        else:
            self._object(value)

    def _say(self, *words: str) -> None:
        for word in words:
            data = word.encode(errors="surrogatepass")
            self.digest.update(f"{len(data)}:".encode() + data)

    def _array(self, value: Any) -> None:
        known = type(value) is np.ndarray or isinstance(value, np.generic | jax.Array)
        if not known or is_traced(value) or not isinstance(value.dtype, np.dtype) or value.dtype.hasobject:
            raise _DoubtError
        held = np.asarray(value)
        weak = getattr(value, "weak_type", None)
        self._say("array", type(value).__name__, str(weak), repr(held.dtype), str(held.shape))
        self.digest.update(np.ascontiguousarray(held).view(np.uint8).data if held.size else b"")

    def _module(self, module: types.ModuleType, names: Iterable[str], seen: set[str]) -> None:
        """A module, and what code with these names takes from it unless it is a library's."""
        place = module.__name__
        library = _root(place) in _LIBRARIES
        if place in _STATEFUL or sys.modules.get(place) is not module or not (library or _shows_all(module)):
            raise _DoubtError
        self._say("module", place)
        seen.add(place)
        for name in names:
            value = vars(module).get(name)
            if isinstance(value, types.ModuleType):
                if value.__name__ not in seen:
                    self._module(value, names, seen)
            elif name in vars(module) and not library:
                self._say(name)
                self.add(value)

    def _function(self, function: types.FunctionType) -> None:
        self._say(function.__qualname__)
        self.add([function.__defaults__, function.__kwdefaults__, function.__dict__])
        for cell in function.__closure__ or ():
            try:
                self.add(cell.cell_contents)
            except ValueError:
                self._say("empty")
        self._code(function.__code__)
        names = sorted(_attributes(function.__code__))
        for name in sorted(_globals(function.__code__)):
            self._say("global", name)
            if name in function.__globals__:
                value = function.__globals__[name]
                # A module is looked into by each function that uses it, for what this one takes from it.
                self._module(value, names, set()) if isinstance(value, types.ModuleType) else self.add(value)
            elif not hasattr(builtins, name) or name in _HIDDEN:
                raise _DoubtError

    def _code(self, code: types.CodeType) -> None:
        """What it does, wherever it is written."""
        if any(step.opname in ("IMPORT_NAME", "STORE_GLOBAL") for step in dis.get_instructions(code)):
            raise _DoubtError
        counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
        names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
        self.add([code.co_name, counts, names, code.co_code, code.co_exceptiontable])
        for constant in code.co_consts:
            self._code(constant) if isinstance(constant, types.CodeType) else self.add(constant)

    def _sequence(self, values: list | tuple) -> None:
        self._say(str(len(values)))
        for value in values:
            self.add(value)

    def _mapping(self, values: dict) -> None:
        # In their order, which a model may depend on.
        self._sequence([part for pair in values.items() for part in pair])

    def _set(self, values: set | frozenset) -> None:
        # Only of what has an order that does not change from one set to an equal one.
        if not all(type(value) in _PLAIN for value in values):
            raise _DoubtError
        self._sequence(sorted(values, key=lambda value: (type(value).__name__, repr(value))))

    def _partial(self, value: functools.partial) -> None:
        self._sequence([value.func, value.args, value.keywords, value.__dict__])

    def _method(self, value: types.MethodType) -> None:
        self._sequence([value.__func__, value.__self__])

    def _wrapped(self, value: Any) -> None:
        self.add(value.__func__)

    def _jitted(self, value: Any) -> None:
        # It may have seen its globals as they were before, so another one with the same function is another.
        self._say(str(id(value)))
        self.add(value.__wrapped__)

    def _property(self, value: property) -> None:
        self._sequence([value.fget, value.fset, value.fdel])

    def _class(self, value: type) -> None:
        if type(value) is not type:
            raise _DoubtError
        self._say("class", value.__qualname__)
        self._sequence(value.__bases__)
        self._mapping({name: part for name, part in vars(value).items() if name not in _OF_CLASSES})

    def _object(self, value: Any) -> None:
        """An object whose class says nothing of its own about what it consists of: then it is its attributes."""
        kind = type(value)
        own = ("__reduce__", "__reduce_ex__", "__getstate__", "__getattr__", "__getattribute__")
        if any(getattr(kind, name, None) is not getattr(object, name, None) for name in own):
            raise _DoubtError
        try:
            _, arguments, *state = value.__reduce_ex__(2)
        except Exception:
            raise _DoubtError from None
        self._say("object")
        self.add(arguments)
        self.add([list(part) if hasattr(part, "__next__") else part for part in state])


_WAYS = {
    types.FunctionType: _Walk._function,
    list: _Walk._sequence,
    tuple: _Walk._sequence,
    dict: _Walk._mapping,
    set: _Walk._set,
    frozenset: _Walk._set,
    functools.partial: _Walk._partial,
    types.MethodType: _Walk._method,
    staticmethod: _Walk._wrapped,
    classmethod: _Walk._wrapped,
    property: _Walk._property,
    type(jax.jit(lambda: None)): _Walk._jitted,
}


def _root(name: str) -> str:
    return name.partition(".")[0]


def _shows_all(module: types.ModuleType) -> bool:
    """Whether what it does not hold by name is not made on demand."""
    return "__getattr__" not in vars(module)


def _library_name(value: Any) -> tuple[str, str] | None:
    """The module and name by which a library knows it."""
    place, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(place, str) or not isinstance(name, str) or _root(place) not in _LIBRARIES:
        return None
    found: Any = sys.modules.get(place)
    for part in name.split("."):
        found = getattr(found, part, None)
    return (place, name) if found is value and place not in _STATEFUL and name not in _HIDDEN else None


def _nested(code: types.CodeType) -> Iterable[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def _globals(code: types.CodeType) -> set[str]:
    """The names that it, and functions inside it, look up beyond themselves."""
    steps = (step for one in _nested(code) for step in dis.get_instructions(one))
    return {step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}


def _attributes(code: types.CodeType) -> set[str]:
    return {name for one in _nested(code) for name in one.co_names}
