"""Choices by name: what files, the command line and study.toml may name, those of other packages among them.

A choice is a frozen dataclass whose fields are its settings. A package makes its own known with `epvi.register`, in a
module that it names as an entry point of the group "epvi.plugins"; such modules are imported when a name is looked up.
"""

import dataclasses
import functools
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar, cast

from epvi.ground.errors import EpviError

T = TypeVar("T")
C = TypeVar("C", bound=type)

# The group of entry points whose modules register choices when they are imported.
PLUGINS = "epvi.plugins"


class Registry(Generic[T]):
    """The choices of one kind, by the lower-case names of their classes."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._classes: dict[str, type[T]] = {}

    def add(self, choice: C) -> C:
        """Make a class known; gives it back, so that it can decorate one."""
        name = choice.__name__.lower()
        if not dataclasses.is_dataclass(cast(Any, choice)):
            raise EpviError(f"{choice.__name__} is no dataclass: decorate it with @dataclasses.dataclass(frozen=True).")
        known = self._classes.get(name)
        # A module that is imported again, as in a notebook, replaces its own.
        if known is not None and (known.__module__, known.__qualname__) != (choice.__module__, choice.__qualname__):
            raise EpviError(f"there is a {self.kind} {name!r} already ({known.__module__}): choose another name.")
        self._classes[name] = cast(type[T], choice)
        return choice

    def names(self) -> list[str]:
        """The names, in the order in which they were registered."""
        _load_plugins()
        return list(self._classes)

    def named(self, name: str) -> type[T]:
        """The class of this name, in any case of its letters."""
        found = self._classes.get(name.lower())
        if found is None:
            known = self.names()
            if name.lower() not in known:
                raise EpviError(f"there is no {self.kind} {name!r}: it is one of {', '.join(known)}.")
            found = self._classes[name.lower()]
        return found

    def settings(self, name: str) -> set[str]:
        """The names of a choice's settings."""
        return {field.name for field in dataclasses.fields(cast(Any, self.named(name))) if field.init}

    def make(self, name: str, settings: Mapping[str, Any]) -> T:
        """The choice of this name with these settings, which it checks itself."""
        known = self.settings(name)
        unknown = [setting for setting in settings if setting not in known]
        if unknown:
            listed = ", ".join(sorted(known)) or "none"
            raise EpviError(f"the {self.kind} {name!r} has no setting {unknown[0]!r}: it has {listed}.")
        return self.named(name)(**settings)


@functools.cache
def _load_plugins() -> None:
    for plugin in entry_points(group=PLUGINS):
        try:
            plugin.load()
        except Exception as error:
            raise EpviError(
                f"the plugin {plugin.name!r} of epvi ({plugin.value}) cannot be imported: {type(error).__name__}:"
                f" {error}. Mend or uninstall the package that brings it."
            ) from error
