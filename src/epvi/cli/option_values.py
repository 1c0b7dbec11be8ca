"""What groups of options reach a verb as: small objects that make a model, rows, an inference or a product."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from epvi.cli import parsing

if TYPE_CHECKING:
    from epvi.hub.product.result import Product
    from epvi.site.fit.nvi import NVI
    from epvi.site.model.model import Model
    from epvi.site.rows.rows import Rows
    from epvi.study.study import Study


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """MODEL, which is a reference to a model or the path of a study, and what belongs to it."""

    reference: str
    fixed: tuple[str, ...]
    groups: str | None = None
    allow_module: bool = False

    @property
    def is_study(self) -> bool:
        """Whether MODEL is a study."""
        return self.reference.endswith(".toml")

    def as_model(self) -> "Model":
        """The model, with its fixed arguments: JSON values, arrays from .npy files ("@places.npy"), or else text."""
        from epvi.study.references import model_named

        fixed = {name: parsing.value(text) for name, text in parsing.pairs("--set", self.fixed).items()}
        return model_named(self.reference, fixed, groups=self.groups)

    def as_study(self) -> "Study":
        """The study."""
        from epvi.study.study import load_study

        return load_study(self.reference, allow_module=self.allow_module)


@dataclasses.dataclass(frozen=True)
class RowOptions:
    """Files of rows, and what of their columns a model's arguments are made of."""

    files: tuple[str, ...]
    x: str | None
    y: str | None
    more: tuple[str, ...]
    levels: tuple[str, ...]
    limits: tuple[str, ...]
    drop_missing: bool
    standardise: bool = False

    @property
    def source(self) -> str | list[str]:
        """The file or files."""
        if not self.files:
            raise click.UsageError("Missing option '--rows'.")
        return self.files[0] if len(self.files) == 1 else list(self.files)

    @property
    def arguments(self) -> dict[str, Any]:
        """The source columns of every argument."""
        made: dict[str, Any] = {}
        if self.x:
            made["x"] = parsing.names(self.x)
        if self.y:
            made["y"] = self.y
        for name, text in parsing.pairs("--column", self.more).items():
            made[name] = parsing.names(text) if "," in text else text
        return made

    def as_rows(self, constants: Mapping[str, tuple[float, float]] | None = None) -> "Rows":
        """The rows; `constants` are the centres and scales to standardise with of those columns that are used."""
        from epvi.site.rows.rows import Rows, check_arguments

        source, arguments = self.source, self.arguments
        check_arguments(arguments)
        used = [name for of in arguments.values() for name in ([of] if isinstance(of, str) else of)]
        known = {name: pair for name, pair in (constants or {}).items() if name in used}
        levels, limits = parsing.pairs("--levels", self.levels), parsing.pairs("--limits", self.limits)
        return Rows(
            source,
            standardise=True if self.standardise else known or None,
            levels={name: parsing.levels(text) for name, text in levels.items()} or None,
            limits={name: parsing.limits(name, text) for name, text in limits.items()} or None,
            drop_missing=self.drop_missing,
            **arguments,
        )


@dataclasses.dataclass(frozen=True)
class InferenceOptions:
    """How a shard is fitted."""

    components: int
    covariance: str
    no_merge: bool
    max_sweeps: int

    def as_inference(self) -> "NVI":
        """The inference."""
        from epvi.site.fit.nvi import NVI
        from epvi.study.study import covariances

        return NVI(self.components, covariances()[self.covariance], merge=not self.no_merge, max_sweeps=self.max_sweeps)


@dataclasses.dataclass(frozen=True)
class ProductOptions:
    """How the shards' fits are multiplied."""

    product: str
    samples: int | None

    def as_product(self) -> "Product | None":
        """The product; None when it is chosen by size."""
        from epvi.hub.product.known import PRODUCTS

        if self.samples is not None and (
            self.product == "auto" or "num_samples" not in PRODUCTS.settings(self.product)
        ):
            raise click.UsageError("--samples goes with --product chain, subset or anchored.")
        said = {} if self.samples is None else {"num_samples": self.samples}
        return None if self.product == "auto" else PRODUCTS.make(self.product, said)
