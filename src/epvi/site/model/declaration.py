"""Checks what a model declares of its groups against its function's arguments."""

from collections.abc import Mapping
from typing import Any

from epvi.ground.errors import EpviError


def checked_groups(name: str, arguments: Mapping[str, Any], fixed: Mapping[str, Any], groups: Any) -> str:
    """The column of groups of a model of this name, for which its function needs two arguments."""
    if not isinstance(groups, str):
        raise EpviError(f'groups is {groups!r}: pass the name of one column, as in groups="hospital".')
    for argument, what in ((groups, "the number of each row's group"), (f"num_{groups}", "the number of groups")):
        if argument in fixed:
            raise EpviError(f"{argument} is fixed, and with groups={groups!r} epvi gives it: leave it out.")
        if argument not in arguments:
            raise EpviError(
                f"{name} has no argument {argument!r}, which with groups={groups!r} is {what}: add it, as in"
                f" def {name}({groups}, num_{groups}, ...), with the effects inside"
                f' numpyro.plate("{groups}", num_{groups}).'
            )
    return groups


def refuse_groups(name: str, groups: str | None) -> None:
    """Refuse a model with groups where their effects would be parameters like the others."""
    if groups is not None:
        raise EpviError(
            f"the effects of {groups} stay at their site, and here they would be parameters like the others: use"
            f" Model({name}, num_{groups}=...) without groups={groups!r} for that."
        )
