"""`epvi pool`: the sites' statistics of columns become constants to standardise with."""

import json
import re
from pathlib import Path

import click

from epvi.cli import options
from epvi.cli.output import Verb, give
from epvi.ground.errors import EpviError
from epvi.ground.printable import shown


@click.command(cls=Verb)
@click.argument("files", nargs=-1, required=True, type=options.PATH)
@click.option("--into", type=options.PATH, help="Also write centre and scale into this study.toml.")
def pool(files: tuple[Path, ...], into: Path | None) -> None:
    """Pool the sites' statistics in FILES into the constants that all standardise with: lines for study.toml.

    \b
    Example:
      epvi pool site-*.stats.epvi --into study.toml
    """
    from epvi.files import load_only
    from epvi.wire.column_stats import Stats
    from epvi.wire.column_stats import pool as pool_stats

    found: dict[Path, Stats] = {}
    for path in files:
        one = load_only(path, Stats)
        for other, held in found.items():
            if held == one:
                raise EpviError(f"{other} and {path} hold the same statistics, which would count twice: leave one out.")
            strange = sorted(set(held.columns) ^ set(one.columns))
            if strange:
                raise EpviError(
                    f"column {strange[0]!r} is in one of {other} and {path}: pool files of the same columns."
                )
        found[path] = one
    pooled = pool_stats(list(found.values()))
    constants = pooled.constants()
    data = {"columns": pooled.as_json(), "constants": {name: list(pair) for name, pair in constants.items()}}
    words = "\n".join(f"[columns.{toml_key(name)}]\n{_entries(*pair)}" for name, pair in constants.items())
    if into is not None:
        num_shards = write_constants(into, constants)
        data["file"] = str(into)
        words += f"\nWrote centre and scale of {shown(', '.join(constants))} into {shown(into)}."
        if len(found) < num_shards:
            words += f" They are those of {len(found)} of its {num_shards} sites."
    give(data, words)


def toml_key(name: str) -> str:
    """A column's name as a TOML key."""
    bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if bare else json.dumps(name)


def _entries(centre: float, scale: float) -> str:
    return f"centre = {centre!r}\nscale = {scale!r}\n"


def write_constants(path: Path, constants: dict[str, tuple[float, float]]) -> int:
    """Put centre and scale into the columns' tables of a study and leave the rest as it is; the number of sites."""
    from epvi.ground.atomic import write_whole
    from epvi.study.study import load_study, read_study

    study = load_study(path)
    used = set(study.raw_rows({}).used)
    strange = [name for name in constants if name not in used]
    if strange:
        raise EpviError(f"{path} has no argument that is made of column {strange[0]!r}: pool the columns of the study.")
    text = path.read_text("utf-8")
    for name, (centre, scale) in constants.items():
        text = _with_constants(text, name, _entries(centre, scale))
    try:
        made = read_study(path, text)
    except EpviError as error:
        raise EpviError(f"centre and scale cannot be written into {path}: {error}") from None
    if any(made.columns.get(name, {}).get("centre") != centre for name, (centre, _) in constants.items()):
        raise EpviError(f"{path} does not have a [columns.NAME] table for each column: write centre and scale by hand.")
    write_whole(path, text.encode())
    return study.num_shards


def _with_constants(text: str, name: str, entries: str) -> str:
    """The text with these lines in the table of a column, in place of those it has, or in a new table at the end."""
    headers = [f"[columns.{toml_key(name)}]", f"[columns.{json.dumps(name)}]"]
    lines = text.splitlines()
    at = next((i for i, line in enumerate(lines) if line.split("#")[0].strip() in headers), None)
    if at is None:
        return text.rstrip() + f"\n\n{headers[0]}\n{entries}"
    end = next((i for i in range(at + 1, len(lines)) if lines[i].lstrip().startswith("[")), len(lines))
    kept = [line for line in lines[at + 1 : end] if not re.match(r"\s*(centre|scale)\s*=", line)]
    return "\n".join([*lines[: at + 1], *entries.splitlines(), *kept, *lines[end:]]) + "\n"
