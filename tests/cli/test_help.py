"""What help texts say is what the library does, which they must not import to say it."""

import dataclasses
import inspect
import re
from fractions import Fraction

import click
import pytest
from commands import call
from some_fits import some_fit

import epvi
from epvi.cli import main
from epvi.cli.group import _VERBS
from epvi.cli.verbs import certify as certify_file
from epvi.hub.posterior import posterior as posterior_file
from epvi.run.rounds import Rounds
from epvi.site.derivatives.expansion import TALL
from epvi.site.rows.column_stats import column_stats
from epvi.wire.request import MOST_DRAWS


def default(verb, name):
    """What an option is when it is left out."""
    command = main.get_command(click.Context(main), verb)
    return next(param for param in command.params if param.name == name).default


def usual(function, name):
    """What an argument is when it is left out."""
    return inspect.signature(function).parameters[name].default


def helped(verb):
    """A help text without its line breaks."""
    return " ".join(call(verb, "--help").stdout.split())


@pytest.mark.parametrize("verb", ["fit", "shard"])
def test_shards_are_fitted_as_by_default_in_python(verb):
    settings = epvi.NVI()
    assert default(verb, "components") == settings.num_components
    assert default(verb, "max_sweeps") == settings.max_sweeps
    assert default(verb, "covariance") == "auto"


def test_draws_are_as_many_as_by_default_in_python():
    assert default("certify", "num_draws") == posterior_file.NUM_DRAWS == usual(epvi.Posterior.ask, "num_draws")
    assert certify_file.MOST_DRAWS == MOST_DRAWS
    assert default("predict", "draws") == usual(epvi.predict, "num_samples")
    assert default("stats", "min_rows") == usual(column_stats, "min_rows")
    quantiles = tuple(map(float, default("summary", "quantiles").split(",")))
    assert quantiles == usual(epvi.Posterior.summary, "quantiles")


def test_numbers_in_texts_are_those_of_the_library():
    said = helped("fit")
    assert f"[default: (at most {Rounds.of(True, None).refine}, until it can be trusted; none with" in said
    assert Rounds.of(False, None).refine == 0
    assert f"otherwise {TALL:,} rows and more are scored by a part of them" in helped("score")


def test_the_fewest_draws_are_those_that_python_takes():
    whole = dataclasses.replace(some_fit(k=1, shard=1), num_shards=1, prior=Fraction(1))
    posterior = epvi.combine([whole])
    assert len(posterior.ask(certify_file.FEWEST_DRAWS).theta) == certify_file.FEWEST_DRAWS
    with pytest.raises(epvi.EpviError, match=f"at least {certify_file.FEWEST_DRAWS}"):
        posterior.ask(certify_file.FEWEST_DRAWS - 1)


@pytest.mark.parametrize("verb", _VERBS)
def test_every_verb_has_a_file_and_a_function_of_its_name(verb):
    command = main.get_command(click.Context(main), verb)
    assert command.name == verb
    assert inspect.unwrap(command.callback).__module__ == f"epvi.cli.verbs.{verb}"


@pytest.mark.parametrize("verb", _VERBS)
def test_options_reach_a_verb_with_types(verb):
    function = inspect.unwrap(main.get_command(click.Context(main), verb).callback)
    parameters = inspect.signature(function).parameters.values()
    assert len(parameters) <= 7
    assert all(p.annotation is not p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)


def test_help_names_no_option_that_is_not_there():
    for verb in _VERBS:
        said = call(verb, "--help").stdout
        there = {option for param in main.get_command(click.Context(main), verb).params for option in param.opts}
        # Other verbs' options are named beside their verb.
        own = re.sub(r"epvi (?!" + verb + r"\b)\w+ [^\n]*|certify --strict|--accept-unconverged", "", said)
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", own)) <= there | {"--help"}, verb
