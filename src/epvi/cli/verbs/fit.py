"""`epvi fit`: the whole job where all rows are in one place."""

import dataclasses
from pathlib import Path

import click

from epvi.cli import options
from epvi.cli.option_values import InferenceOptions, ModelOptions, ProductOptions, RowOptions
from epvi.cli.output import Verb, about_posterior, give, size_of, trusted
from epvi.ground.printable import shown


@dataclasses.dataclass(frozen=True)
class SplitOptions:
    """How rows are dealt out to shards."""

    shards: int | None
    by: str | None
    no_shuffle: bool

    def check(self, engine: str | None) -> None:
        """Refuse options that contradict each other; an engine makes a shard of each file without them."""
        if (self.shards is None) == (self.by is None) and (engine is None or self.by is not None):
            raise click.UsageError(
                "Give either --shards 8 or --by COLUMN: how many shards, or which column names them."
            )
        if self.by is not None and self.no_shuffle:
            raise click.UsageError("--no-shuffle goes with --shards: with --by, the column says which rows go where.")


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """What is done after the first round, and by which workers."""

    no_certify: bool
    refine: int | None
    fallback: str | None
    workers: int | None
    engine: str | None
    work: Path | None
    seed: int


@click.command(cls=Verb)
@options.model
@options.rows_in_one_place
@options.gathered(
    "split",
    SplitOptions,
    click.option("--shards", type=click.IntRange(1), help="Deal the rows out at random to this many shards."),
    click.option("--by", metavar="COLUMN", help="Or make one shard for each value of this column."),
    click.option("--no-shuffle", is_flag=True, help="With --shards: runs of rows in their order, not at random."),
)
@options.inference
@options.product
@options.gathered(
    "run",
    RunOptions,
    click.option(
        "--no-certify", is_flag=True, help="Do not score draws of the posterior: no verdict on whether to trust it."
    ),
    click.option(
        "--refine",
        type=click.IntRange(0),
        show_default="at most 30, until it can be trusted; none with --no-certify",
        help="At most this many refinement rounds.",
    ),
    click.option(
        "--fallback",
        type=click.Choice(["nuts"]),
        help="What samples the posterior from all rows if it still cannot be trusted: NumPyro's NUTS.",
    ),
    click.option("--workers", type=click.IntRange(1), show_default="one per core", help="Worker processes."),
    click.option(
        "--engine",
        metavar="ENGINE",
        help="Who reads the rows where they are, instead of this process: dask=tcp://host:8786, ray or local. Each file"
        " is a shard then, unless --shards or --by groups files.",
    ),
    click.option(
        "--work", type=options.PATH, help="A folder that keeps the fits of finished shards; run again to go on."
    ),
    options.seed,
)
@options.output("posterior")
def fit(
    model: ModelOptions,
    rows: RowOptions,
    split: SplitOptions,
    inference: InferenceOptions,
    product: ProductOptions,
    run: RunOptions,
    output: Path,
) -> None:
    """Fit MODEL to rows in one place: shards in parallel, on all cores.

    MODEL is file.py:function, module:function, or a ready model: logistic, multinomial, poisson, robust_linear, tlsa.
    The shards' fits are multiplied into the posterior. Then all shards score draws of it, which says whether it can be
    trusted; if not, it is refined. With --fallback nuts, a posterior that cannot be trusted even then is sampled.

    \b
    Example:
      epvi fit model.py:logistic --rows susy.parquet --x lepton_pT,missing_energy --y signal \\
          --shards 8 -o posterior.epvi --work run/

    With --work, the fit of every shard is kept there as soon as it is finished: after a crash or Ctrl-C, run the same
    command again. Only the missing shards are fitted, and the answer is the same.
    """
    split.check(run.engine)
    described = rows.as_rows()
    from epvi.engines.known import named
    from epvi.run.fit import fit as run_fit
    from epvi.site.tasks.chain import NUTS

    posterior = run_fit(
        model.as_model(),
        described,
        split.shards,
        by=split.by,
        shuffle=not split.no_shuffle,
        inference=inference.as_inference(),
        product=product.as_product(),
        certify=not run.no_certify,
        refine=run.refine,
        fallback=None if run.fallback is None else NUTS(),
        executor=run.workers,
        engine=None if run.engine is None else named(run.engine),
        work=run.work,
        seed=run.seed,
    )
    path = posterior.save(output)
    summary = posterior.summary()
    words = f"{summary}\n\n{posterior.stands_for}. {trusted(posterior)}\nWrote {shown(path)} ({size_of(path)})."
    give({**about_posterior(posterior, summary), "file": str(path)}, words)
