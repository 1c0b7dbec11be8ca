"""Reads `study.toml`, the one file of a study: model, columns and units, shards and their shares of the prior.

Every site has the same file and needs besides it only its rows to fit its shard. Every entry is checked; unknown names
are an error.
"""

import dataclasses
import difflib
import math
import tomllib
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from epvi.gaussian.structure import Structure
from epvi.gaussian.structures import structures
from epvi.ground.errors import EpviError
from epvi.ground.printable import shown
from epvi.ground.validation import at_least
from epvi.site.fit.inference import INFERENCES, Inference
from epvi.site.fit.nvi import NVI
from epvi.site.model.model import Model
from epvi.site.rows.column_stats import column_stats
from epvi.site.rows.grouped_table import read_grouped
from epvi.site.rows.rows import Rows, check_arguments
from epvi.site.tasks.fit_shard import as_share, fit_table, parse_shard
from epvi.site.tasks.score import score
from epvi.site.tasks.stand_in import stand_in
from epvi.study.placeholders import placeholder_rows
from epvi.study.references import study_model
from epvi.wire.answer import Scores
from epvi.wire.column_stats import Stats
from epvi.wire.request import Draws
from epvi.wire.shard_fit import Part, ShardFit

# Known entries: values and tables at the top level, and entries of a table in [columns].
_TOP = {"name", "model", "min_rows", "drop_missing", "hash_key", "seed", "standardise", "groups"}
_TABLES = {"arguments", "fixed", "columns", "shards", "inference"}
_COLUMN = {"unit", "limits", "levels", "centre", "scale"}


def covariances() -> dict[str, Structure | None]:
    """What a covariance is called in study.toml and on the command line; "auto" is by the number of parameters."""
    return {"auto": None, **structures()}


@dataclasses.dataclass(frozen=True)
class Study:
    """What all sites of a study agree on."""

    # The study.toml.
    path: Path
    # Name of the study, by default the file's name.
    name: str
    # Reference to the model, as in "model.py:linear" or "logistic".
    model_reference: str
    # Source columns of each argument of the model; see `epvi.Rows`.
    arguments: Mapping[str, str | list[str]]
    # Arguments of the model that are not columns.
    fixed: Mapping[str, Any]
    # Unit, limits, levels, centre and scale of source columns.
    columns: Mapping[str, Mapping[str, Any]]
    # Source columns that must have a centre and a scale before a fit.
    standardise: tuple[str, ...]
    # Share of the prior of each shard, by name; their order numbers the shards.
    shards: Mapping[str, Fraction]
    # The local inference with its settings.
    inference: Inference
    # Seed of every random draw.
    seed: int
    # Fewest rows with which a site may fit.
    min_rows: int
    # Whether rows with a missing value are left out; otherwise they are an error.
    drop_missing: bool
    # Key of the hash by which shards with the same rows are detected.
    hash_key: str
    # The argument of groups whose effects are integrated out at every site; None if there is none.
    groups: str | None = None
    # Whether the model may be in an installed module: the user decides this, not the file.
    allow_module: bool = False

    @property
    def num_shards(self) -> int:
        """The number M of shards."""
        return len(self.shards)

    def model(self) -> Model:
        """The model: a ready one, or that of the file in the study's folder, which is executed."""
        folder, allow = self.path.parent, self.allow_module
        return study_model(self.model_reference, self.fixed, folder, groups=self.groups, allow_module=allow)

    def rows(self, source: Any) -> Rows:
        """The description of a site's rows, with the study's columns, units and levels."""
        without = [name for name in self.standardise if "centre" not in self.columns.get(name, {})]
        if without:
            raise EpviError(
                f"{self.path} standardises column {without[0]!r}, whose centre and scale are not in it yet: run"
                f" epvi stats at every site, and epvi pool ... --into {self.path} on what they wrote."
            )
        return self.raw_rows(source)

    def raw_rows(self, source: Any) -> Rows:
        """Like `rows`, but without requiring the centres and scales of standardised columns."""
        described = self.columns.items()
        return Rows(
            source,
            standardise={n: (c["centre"], c["scale"]) for n, c in described if "centre" in c} or None,
            levels={n: c["levels"] for n, c in described if "levels" in c} or None,
            limits={n: c["limits"] for n, c in described if "limits" in c} or None,
            drop_missing=self.drop_missing,
            hash_key=self.hash_key,
            **self.arguments,
        )

    def shard(self, said: str) -> tuple[str, Fraction, str]:
        """The number ("3/6"), share of the prior and name of a shard, given its number or its name."""
        names = list(self.shards)
        if said in self.shards:
            index = names.index(said) + 1
        else:
            try:
                index, count = parse_shard(said)
            except EpviError:
                raise EpviError(
                    f"{self.path} has no shard {said!r}: write 3/{len(names)} or one of {', '.join(names[:10])}."
                ) from None
            if count != len(names):
                raise EpviError(
                    f"shard is {said!r}, but {self.path} has {len(names)} shards: write one of {', '.join(names[:10])}."
                )
        return f"{index}/{len(names)}", self.shards[names[index - 1]], names[index - 1]

    def fit(self, source: Any, shard: str, prior: Any = None) -> ShardFit:
        """Fit a site's shard; `prior` replaces the study's share of the prior."""
        number, share, name = self.shard(shard)
        index, num_shards = parse_shard(number)
        table = read_grouped(self.rows(source), self.groups)
        self._check_rows(source, table.num_rows)
        share = share if prior is None else as_share(prior, num_shards)
        part = Part(index, num_shards, shown(f"{index} of {num_shards} ({name})"), share)
        return self._named(fit_table(self.model(), table, part, self.inference, self.seed))

    def score(self, source: Any, shard: str, draws: Draws, *, exact: bool = False) -> Scores:
        """Evaluate the hub's draws on the rows to which the site's shard was fitted."""
        number, _, _ = self.shard(shard)
        made = score(self.model(), self.rows(source), draws, number, exact=exact)
        self._check_rows(source, made.num_rows)
        return dataclasses.replace(made, made_of=dataclasses.replace(made.made_of, study=self.name))

    def stand_in(self, shard: str, prior: Any = None) -> ShardFit:
        """A fit of the prior's share alone, for a shard that contributes no rows."""
        number, share, name = self.shard(shard)
        share = share if prior is None else as_share(prior, self.num_shards)
        made = stand_in(
            self.model(),
            self.rows(placeholder_rows(self.raw_rows({}).used, self.columns)),
            number,
            prior=share,
            seed=self.seed,
        )
        return self._named(dataclasses.replace(made, label=shown(f"{made.label} ({name})")))

    def stats(self, source: Any) -> Stats:
        """Counts, means and sds of numeric source columns, in their own units.

        These are the columns that the study standardises; if it names none, the columns inside matrices (a column that
        is an argument by itself may be the observed one, whose unit the model fixes); without matrices, all columns.
        """
        columns = {n: _without(c, "centre", "scale") for n, c in self.columns.items()}
        rows = dataclasses.replace(self, columns=columns).raw_rows(source)
        inside = [name for names in rows.columns.values() if not isinstance(names, str) for name in names]
        not_numbers = {*rows.levels, rows.columns.get(self.groups or "")}
        numbers = [name for name in dict.fromkeys(inside or rows.used) if name not in not_numbers]
        names = list(self.standardise) or numbers
        if not names:
            raise EpviError(f"{self.path} has no column of numbers to standardise: all of x have levels.")
        least = {"min_rows": self.min_rows} if self.min_rows > 1 else {}
        return column_stats(rows, names, **least)

    def _check_rows(self, source: Any, num_rows: int) -> None:
        if num_rows < self.min_rows:
            raise EpviError(
                f"{_source_name(source)} has {num_rows:,} rows that can be used and {self.path} asks for at least"
                f" {self.min_rows:,} (min_rows), since a fit to few rows can disclose single ones: nothing was written."
            )

    def _named(self, fit: ShardFit) -> ShardFit:
        return dataclasses.replace(fit, made_of=dataclasses.replace(fit.made_of, study=self.name))


def _without(table: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name not in names}


def _source_name(source: Any) -> str:
    return str(source) if isinstance(source, str | Path) else "the site"


def load_study(path: str | Path, *, allow_module: bool = False) -> Study:
    """Read and check a `study.toml`; `allow_module` lets it name a model in an installed module.

    Reading it runs no code. `Study.model` does: it executes the model file in the study's folder.
    """
    path = Path(path)
    try:
        return dataclasses.replace(read_study(path, path.read_text("utf-8")), allow_module=allow_module)
    except OSError as error:
        raise EpviError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise EpviError(f"{path} is not TOML: {str(error).splitlines()[0]}.") from error


def read_study(path: Path, text: str) -> Study:
    """Parse and check the text of a study; `path` names the file in error messages."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        twice = ": put all of it under one heading" if "twice" in str(error) else ""
        raise EpviError(f"{path} is not TOML: {str(error).splitlines()[0]}{twice}.") from error
    return _Reader(path).study(table)


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Checks the entries of a parsed study.toml; every error names the entry and the file."""

    path: Path

    def study(self, table: dict[str, Any]) -> Study:
        self.known(table, _TOP | _TABLES, "")
        columns = {name: self.column(name, said) for name, said in self.table(table, "columns").items()}
        arguments = self.table(table, "arguments")
        if not arguments:
            raise self.wrong("arguments", 'is empty: say what the model\'s arguments are made of, as in y = "num"')
        made = Study(
            path=self.path,
            name=shown(self.text(table, "name", self.path.stem)),
            model_reference=self.text(table, "model"),
            arguments=arguments,
            fixed=self.table(table, "fixed"),
            columns=columns,
            standardise=self.names(table, "standardise"),
            shards=self.shards(table),
            inference=self.inference(self.table(table, "inference")),
            seed=self.whole(table, "seed", 0, 0),
            min_rows=self.whole(table, "min_rows", 1, 1),
            drop_missing=self.truth(table, "drop_missing"),
            hash_key=self.text(table, "hash_key", ""),
            groups=self.text(table, "groups") if "groups" in table else None,
        )
        try:
            check_arguments(arguments)
            used = made.raw_rows({}).used
        except EpviError as error:
            raise EpviError(f"{self.path}: {error}") from None
        self.known(columns, set(used), "columns.", "no argument is made of it")
        self.known(dict.fromkeys(made.standardise), set(used), "standardise: ", "no argument is made of it")
        return made

    def wrong(self, what: str, how: str) -> EpviError:
        return EpviError(f"{what} in {self.path} {how}.")

    def known(
        self, table: Mapping[str, Any], names: set[str], prefix: str, why: str = "there is no such entry"
    ) -> None:
        for name in table:
            if name not in names:
                near = difflib.get_close_matches(name, names, 1)
                meant = f"write {near[0]!r}, if that is meant" if near else f"there are {', '.join(sorted(names))}"
                raise self.wrong(f"{prefix}{name}", f"is not known ({why}): {meant}")

    def table(self, table: Mapping[str, Any], name: str) -> dict[str, Any]:
        found = table.get(name, {})
        if not isinstance(found, dict):
            raise self.wrong(name, f"is not a table: write [{name}] above its entries")
        return found

    def text(self, table: Mapping[str, Any], name: str, default: str | None = None) -> str:
        found = table.get(name, default)
        if not isinstance(found, str) or (not found and default is None):
            raise self.wrong(name, "is missing" if found is None else "is not a text: put it in quotes")
        return found

    def whole(self, table: Mapping[str, Any], name: str, default: int, least: int) -> int:
        try:
            return at_least(name, table.get(name, default), least)
        except EpviError as error:
            raise EpviError(f"{self.path}: {error}") from None

    def names(self, table: Mapping[str, Any], name: str) -> tuple[str, ...]:
        found = table.get(name, [])
        if not isinstance(found, list) or any(not isinstance(one, str) for one in found):
            raise self.wrong(name, "is not a list of columns' names")
        return tuple(found)

    def truth(self, table: Mapping[str, Any], name: str) -> bool:
        found = table.get(name, False)
        if not isinstance(found, bool):
            raise self.wrong(name, "is neither true nor false")
        return found

    def column(self, name: str, said: Any) -> dict[str, Any]:
        if not isinstance(said, dict):
            raise self.wrong(f"columns.{name}", "is not a table")
        self.known(said, _COLUMN, f"columns.{name}.")
        if not isinstance(said.get("unit", ""), str):
            raise self.wrong(f"columns.{name}.unit", "is not a text: put it in quotes")
        if ("centre" in said) != ("scale" in said):
            raise self.wrong(f"columns.{name}", "has one of centre and scale: give both (epvi pool prints them)")
        for bound in said.get("limits", []) if isinstance(said.get("limits"), list) else []:
            if not isinstance(bound, int | float) or math.isnan(bound):
                raise self.wrong(f"columns.{name}.limits", "are not two numbers (inf and -inf are allowed)")
        return said

    def shards(self, table: Mapping[str, Any]) -> dict[str, Fraction]:
        said = table.get("shards")
        if isinstance(said, list) and said and all(isinstance(name, str) for name in said):
            if len(set(said)) < len(said):
                raise self.wrong("shards", "name one site twice")
            return {name: Fraction(1, len(said)) for name in said}
        if not isinstance(said, dict) or not said:
            raise self.wrong("shards", 'are missing: list the sites, as in shards = ["north", "south"]')
        try:
            shares = {name: as_share(share, len(said)) for name, share in said.items()}
        except EpviError as error:
            raise EpviError(f"{self.path}: {error}") from None
        if sum(shares.values()) != 1:
            raise self.wrong("shards", f"have shares of the prior that sum to {sum(shares.values())}, not to 1")
        return shares

    def inference(self, said: dict[str, Any]) -> Inference:
        method = said.get("method", NVI.__name__.lower())
        if not isinstance(method, str) or method not in INFERENCES.names():
            raise self.wrong("inference.method", f"is not one of {', '.join(INFERENCES.names())}")
        settings = {name: value for name, value in said.items() if name != "method"}
        self.known(settings, INFERENCES.settings(method), "inference.")
        if "covariance" in settings:
            settings["covariance"] = self.covariance(settings["covariance"])
        try:
            return INFERENCES.make(method, settings)
        except EpviError as error:
            raise EpviError(f"{self.path}: {error}") from None

    def covariance(self, said: Any) -> Structure | None:
        known = covariances()
        if not isinstance(said, str) or said not in known:
            raise self.wrong("inference.covariance", f"is not one of {', '.join(known)}")
        return known[said]
