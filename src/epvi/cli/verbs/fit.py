"""`epvi fit`: the whole job where all rows are in one place."""

from typing import Any

import click

from epvi.cli import options
from epvi.cli.output import Verb, about_posterior, give, size_of, trusted
from epvi.ground.printable import shown


@click.command(cls=Verb)
@options.model
@options.rows
@click.option("--shards", type=click.IntRange(1), help="Split the rows into so many shards.")
@click.option("--by", metavar="COLUMN", help="One shard for each value of this column, instead.")
@click.option("--no-shuffle", is_flag=True, help="Shards are runs of rows in their order.")
@click.option("--standardise", is_flag=True, help="Centre and scale the columns of x, by all these rows.")
@options.fixed
@options.inference
@options.product
@click.option("--no-certify", is_flag=True, help="Do not have the shards say whether it can be trusted.")
@click.option(
    "--refine",
    type=click.IntRange(0),
    help="Rounds that may improve it; up to three unless said, none with --no-certify.",
)
@click.option("--workers", type=click.IntRange(1), help="Processes to use; all cores unless said.")
@click.option("--work", type=options.PATH, help="A folder to keep finished shards in; run again to go on.")
@options.seed
@options.output("posterior")
@options.as_json
def fit(model: str, **said: Any) -> None:
    """Fit MODEL to rows in one place, in shards on all cores.

    MODEL is file.py:function, module:function, or a ready model: logistic, multinomial, poisson, robust_linear, tlsa.

    \b
    Example:
      epvi fit model.py:logistic --rows susy.parquet --x lepton_pT,missing_energy --y signal \\
          --shards 8 -o posterior.epvi --work run/

    With --work, every shard's file is kept there as soon as it is finished: stopped at any moment and run again, only
    what is missing is done, and the answer is the same.
    """
    if (said["shards"] is None) == (said["by"] is None):
        raise click.UsageError("Give either --shards 8 or --by COLUMN: how many shards, or which column names them.")
    if said["by"] is not None and said["no_shuffle"]:
        raise click.UsageError("--no-shuffle goes with --shards: with --by, the column says which rows go where.")
    rows = options.make_rows(said, True if said["standardise"] else None)
    from epvi.run.fit import fit as run_fit
    from epvi.study.references import model_named

    posterior = run_fit(
        model_named(model, options.make_fixed(said["fixed"])),
        rows,
        said["shards"],
        by=said["by"],
        shuffle=not said["no_shuffle"],
        inference=options.make_inference(said),
        product=options.make_product(said),
        certify=not said["no_certify"],
        refine=said["refine"],
        executor=said["workers"],
        work=said["work"],
        seed=said["seed"],
    )
    path = posterior.save(said["output"])
    summary = posterior.summary()
    words = f"{summary}\n\n{posterior.stands_for}. {trusted(posterior)}\nWrote {shown(path)} ({size_of(path)})."
    give(said["as_json"], {**about_posterior(posterior, summary), "file": str(path)}, words)
