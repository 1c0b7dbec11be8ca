"""Hashes a function by everything that its result can depend on, so that equal models can share compiled programs.

Takes functions and values; gives a hash of the contents of their code, defaults, closures and the globals that the code
refers to, or None when something cannot be compared for certain. Models with equal hashes share compiled programs, so a
hash that misses a difference would return another model's results: when in doubt, there is no hash.
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

# Functions and classes of these packages are hashed by name only: they do not change while a program runs.
_LIBRARIES = frozenset(
    {
        *("builtins", "collections", "epvi", "equinox", "functools", "itertools", "jax", "jaxlib", "jaxtyping", "math"),
        *("numpy", "numpyro", "operator", "scipy", "typing"),
    }
)
# Modules among them with hidden state: the same call gives different numbers.
_STATEFUL = frozenset({"numpy.random"})
# Built-ins by which code can read or change what it does not name, or do input and output.
_DYNAMIC = frozenset(
    {"__import__", "compile", "delattr", "eval", "exec", "getattr", "globals", "input", "locals", "open", "setattr"}
    | {"super", "vars"}
)
# Types whose values can change.
_MUTABLE = frozenset({list, dict, set})
# Immutable types whose `repr` is their content.
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented), Fraction, range)
# Attributes of a class that do not change what it computes.
_IGNORED_IN_CLASSES = frozenset(
    {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__firstlineno__"}
)


class _NotComparableError(Exception):
    """A value was met whose content cannot be hashed for certain."""


def likeness(parts: Any, in_one_process: bool = True) -> bytes | None:
    """The hash of functions and values by content; None when they cannot be compared.

    In one process jitted functions are compared by identity, too. A hash for several processes, in which values may
    have changed since they were imported, is one of code and of what cannot change: it leaves out identities, lists,
    mappings, sets and objects.
    """
    found = _ContentHash(in_one_process)
    try:
        found.add(parts)
    except (_NotComparableError, RecursionError):
        return None
    return found.digest.digest()


class _ContentHash:
    """A BLAKE2b digest of an object graph, walked in a fixed order; repeated objects enter as back-references."""

    def __init__(self, in_one_process: bool) -> None:
        self._in_one_process = in_one_process
        # 32 bytes: collisions need about 2^128 models.
        self.digest = hashlib.blake2b(digest_size=32)
        # id -> (number, object). Holding the objects keeps their ids from being reused during the walk.
        self._seen: dict[int, tuple[int, Any]] = {}

    def add(self, value: Any) -> None:
        """Hash one value by its content."""
        if type(value) in _PLAIN:
            self._update(type(value).__name__, repr(value))
            return
        if id(value) in self._seen:
            self._update("again", str(self._seen[id(value)][0]))
            return
        # Not tuples: whether two equal ones are the same object is up to the interpreter.
        if type(value) is not tuple:
            self._seen[id(value)] = len(self._seen), value
        if not self._in_one_process and type(value) in _MUTABLE:
            self._update(type(value).__name__)
        elif isinstance(value, np.ndarray | np.generic | jax.Array):
            self._array(value)
        elif isinstance(value, types.ModuleType):
            self._module(value, (), set())
        elif name := _library_name(value):
            self._update("library", *name)
        elif type(value) in _BY_TYPE:
            self._update(type(value).__name__)
            _BY_TYPE[type(value)](self, value)
        elif isinstance(value, type):
            self._class(value)
        elif self._in_one_process:
            self._object(value)
        else:
            self._update(type(value).__qualname__)

    def _update(self, *words: str) -> None:
        for word in words:
            data = word.encode(errors="surrogatepass")
            self.digest.update(f"{len(data)}:".encode() + data)

    def _array(self, value: Any) -> None:
        known = type(value) is np.ndarray or isinstance(value, np.generic | jax.Array)
        if not known or is_traced(value) or not isinstance(value.dtype, np.dtype) or value.dtype.hasobject:
            raise _NotComparableError
        held = np.asarray(value)
        weak = getattr(value, "weak_type", None)
        self._update("array", type(value).__name__, str(weak), repr(held.dtype), str(held.shape))
        self.digest.update(np.ascontiguousarray(held).view(np.uint8).data if held.size else b"")

    def _module(self, module: types.ModuleType, names: Iterable[str], seen: set[str]) -> None:
        """Hash a module's name and, unless it is a library, those of its attributes whose names occur in the code."""
        place = module.__name__
        library = _root(place) in _LIBRARIES
        if place in _STATEFUL or sys.modules.get(place) is not module or not (library or _is_static(module)):
            raise _NotComparableError
        self._update("module", place)
        seen.add(place)
        for name in names:
            value = vars(module).get(name)
            if isinstance(value, types.ModuleType):
                if value.__name__ not in seen:
                    self._module(value, names, seen)
            elif name in vars(module) and not library:
                self._update(name)
                self.add(value)

    def _function(self, function: types.FunctionType) -> None:
        self._update(function.__qualname__)
        self._sequence([function.__defaults__, function.__kwdefaults__, function.__dict__])
        for cell in function.__closure__ or ():
            try:
                self.add(cell.cell_contents)
            except ValueError:
                self._update("empty")
        self._code(function.__code__)
        names = sorted(_attributes(function.__code__))
        for name in sorted(_globals(function.__code__)):
            self._update("global", name)
            if name in function.__globals__:
                value = function.__globals__[name]
                # For each function anew, since each uses other attributes of the module.
                self._module(value, names, set()) if isinstance(value, types.ModuleType) else self.add(value)
            elif not hasattr(builtins, name) or name in _DYNAMIC:
                raise _NotComparableError

    def _code(self, code: types.CodeType) -> None:
        """Hash bytecode, names and constants, but neither file name nor line numbers."""
        if any(step.opname in ("IMPORT_NAME", "STORE_GLOBAL") for step in dis.get_instructions(code)):
            raise _NotComparableError
        counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
        names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
        self._sequence([code.co_name, counts, names, code.co_code, code.co_exceptiontable])
        for constant in code.co_consts:
            self._code(constant) if isinstance(constant, types.CodeType) else self.add(constant)

    def _sequence(self, values: list | tuple) -> None:
        self._update(str(len(values)))
        for value in values:
            self.add(value)

    def _mapping(self, values: dict) -> None:
        # In insertion order, on which a model may depend.
        self._sequence([part for pair in values.items() for part in pair])

    def _set(self, values: set | frozenset) -> None:
        # Only of values that can be sorted by content: equal sets may iterate in different orders.
        if not all(type(value) in _PLAIN for value in values):
            raise _NotComparableError
        self._sequence(sorted(values, key=lambda value: (type(value).__name__, repr(value))))

    def _partial(self, value: functools.partial) -> None:
        self._sequence([value.func, value.args, value.keywords, value.__dict__])

    def _method(self, value: types.MethodType) -> None:
        self._sequence([value.__func__, value.__self__])

    def _wrapped(self, value: Any) -> None:
        self.add(value.__func__)

    def _jitted(self, value: Any) -> None:
        # By identity: it may have been traced when its globals had other values.
        if self._in_one_process:
            self._update(str(id(value)))
        self.add(value.__wrapped__)

    def _property(self, value: property) -> None:
        self._sequence([value.fget, value.fset, value.fdel])

    def _class(self, value: type) -> None:
        if type(value) is not type:
            raise _NotComparableError
        self._update("class", value.__qualname__)
        self._sequence(value.__bases__)
        self._mapping({name: part for name, part in vars(value).items() if name not in _IGNORED_IN_CLASSES})

    def _object(self, value: Any) -> None:
        """Hash an object by its attributes, if its class customises neither pickling nor attribute access."""
        kind = type(value)
        own = ("__reduce__", "__reduce_ex__", "__getstate__", "__getattr__", "__getattribute__")
        if any(getattr(kind, name, None) is not getattr(object, name, None) for name in own):
            raise _NotComparableError
        try:
            _, arguments, *state = value.__reduce_ex__(2)
        except Exception:
            raise _NotComparableError from None
        self._update("object")
        self.add(arguments)
        self.add([list(part) if hasattr(part, "__next__") else part for part in state])


_BY_TYPE = {
    types.FunctionType: _ContentHash._function,
    list: _ContentHash._sequence,
    tuple: _ContentHash._sequence,
    dict: _ContentHash._mapping,
    set: _ContentHash._set,
    frozenset: _ContentHash._set,
    functools.partial: _ContentHash._partial,
    types.MethodType: _ContentHash._method,
    staticmethod: _ContentHash._wrapped,
    classmethod: _ContentHash._wrapped,
    property: _ContentHash._property,
    type(jax.jit(lambda: None)): _ContentHash._jitted,
}


def _root(name: str) -> str:
    return name.partition(".")[0]


def _is_static(module: types.ModuleType) -> bool:
    """Whether the module has no `__getattr__`, so that `vars` shows all its attributes."""
    return "__getattr__" not in vars(module)


def _library_name(value: Any) -> tuple[str, str] | None:
    """(module, qualified name) of a library's function or class; None if it cannot be found under that name."""
    place, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(place, str) or not isinstance(name, str) or _root(place) not in _LIBRARIES:
        return None
    found: Any = sys.modules.get(place)
    for part in name.split("."):
        found = getattr(found, part, None)
    return (place, name) if found is value and place not in _STATEFUL and name not in _DYNAMIC else None


def _nested(code: types.CodeType) -> Iterable[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def _globals(code: types.CodeType) -> set[str]:
    """Global names that the code, or a function nested in it, looks up."""
    steps = (step for one in _nested(code) for step in dis.get_instructions(one))
    return {step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}


def _attributes(code: types.CodeType) -> set[str]:
    return {name for one in _nested(code) for name in one.co_names}
