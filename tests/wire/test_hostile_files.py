"""Loading is safe: whatever the bytes, it is a refusal that names the file, or a thing that can be used.

`hostile.py` makes the files. A slow test reads 100,000 of them, a quick one in `make test` a few thousand; what is
greedy rather than wrong (many tiny objects, huge shapes) is listed by name, and its memory and time are measured.
"""

import dataclasses
import functools
import itertools
import json
import tracemalloc
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hostile import Parts, inputs
from some_fits import some_fit
from yardstick import cost

import epvi
from epvi import EpviError
from epvi.hub.posterior.posterior import pack_posterior, unpack_posterior
from epvi.wire import envelope
from epvi.wire.envelope import Malformed, seal, unseal
from epvi.wire.shard_fit import ShardFit, pack_fit, unpack_fit

# What reading one file may cost in the units of `yardstick`, and using what was in it, which compiles for its shapes.
MOST_COST, MOST_COST_USED = 500, 5000
# Python's memory while a file is read: this many times its size, and a constant for what JAX keeps of a trace.
MOST_TIMES, MOST_EXTRA = 32, 2**22


@pytest.fixture(scope="module")
def good():
    """Files of fits of every structure, and of a posterior; small, so that many can be read."""
    every = [(epvi.Spherical(), "scalar"), (epvi.Diagonal(), "simplex"), (epvi.Full(), "positive")]
    fits = [some_fit(k=2, structure=structure, support=support) for structure, support in every]
    # One that carries all of the prior, so that it can be combined alone.
    fits[0] = dataclasses.replace(fits[0], shard=1, num_shards=1, prior=Fraction(1))
    two = [some_fit(k=2, structure=epvi.Spherical(), support="scalar", shard=m) for m in (1, 2)]
    two = [dataclasses.replace(fit, num_shards=2, prior=Fraction(1, 2)) for fit in two]
    two = [dataclasses.replace(f, made_of=dataclasses.replace(f.made_of, rows=str(f.shard))) for f in two]
    posterior = epvi.combine(two, epvi.Subset(num_samples=4, chain=epvi.Chain(num_samples=4)))
    return [*(seal(pack_fit(fit)) for fit in fits), *[seal(pack_posterior(posterior))] * 2]


def read(content):
    """What `epvi.load` makes of a file's bytes, without the file."""
    found = unseal(content)
    unpack = {"shard": unpack_fit, "posterior": unpack_posterior}.get(found.kind)
    if unpack is None:
        raise Malformed(f"it holds {found.kind}")
    return unpack(found)


def outcome(content):
    """A thing, or the sentence of its refusal; anything else is a failure of the test."""
    try:
        return read(content)
    except Malformed as error:
        sentence = str(envelope.unusable("sent/site-2.epvi", error))
        check_sentence(sentence, 400)
        return sentence


def check_sentence(sentence, most):
    assert "sent/site-2.epvi" in sentence
    assert sentence.isprintable()
    assert len(sentence) < most


def use(thing):
    """Show it, take its moments and draws, and combine a fit."""
    assert repr(thing).isprintable()
    assert thing.mixture.mean().shape == (thing.space.dim,)
    draws = thing.mixture.sample(3, seed=0)
    values = thing.space.constrain(draws)
    assert {name: x.shape for name, x in values.items()} == {p.name: (3, *p.shape) for p in thing.space.parameters}
    if isinstance(thing, ShardFit):
        assert combined(thing).isprintable()


def combined(fit):
    """The posterior of a fit alone, or its refusal, in words."""
    try:
        return repr(epvi.combine([fit], accept_unconverged=True))
    except EpviError as error:
        return str(error)


def kind_of(thing):
    """What decides which code runs when it is used."""
    return type(thing), thing.mixture.structure, thing.mixture.means.shape, repr(thing.space.signature())


def many(good, count, seed, most_kinds):
    """Read `count` files and use those of the first kinds; outcomes by way, and the dearest.

    Every other kind is compiled anew when it is used, which takes a thousand times as long as reading it.
    """
    outcomes, dearest, dearest_used, kinds = Counter(), (0.0, ""), 0.0, set()
    for way, content in itertools.islice(inputs(good, seed), count):
        found, spent = cost(functools.partial(outcome, content))
        dearest = max(dearest, (spent, way))
        outcomes[way, "refused" if isinstance(found, str) else "loaded"] += 1
        if not isinstance(found, str) and (len(kinds) < most_kinds or kind_of(found) in kinds):
            kinds.add(kind_of(found))
            dearest_used = max(dearest_used, cost(functools.partial(use, found))[1])
    assert dearest_used < MOST_COST_USED
    return outcomes, dearest


def check(good, count, seed, most_kinds):
    outcomes, dearest = many(good, count, seed, most_kinds)
    assert outcomes.total() == count
    assert dearest[0] < MOST_COST, dearest
    # The fuzz is worth something only while files with a change in their record, numbers and space are also taken.
    for way in ("record", "numbers", "space", "text", "raw, sealed"):
        assert outcomes[way, "loaded"] > 0
        assert outcomes[way, "refused"] > 0
    for way in ("raw", "noise", "another kind"):
        assert outcomes[way, "loaded"] == 0
    return outcomes, dearest


def test_thousands_of_hostile_files_are_refused_or_can_be_used(good, untyped):
    check(good, 2000, seed=1, most_kinds=4)


@pytest.mark.slow
def test_a_hundred_thousand_hostile_files_are_refused_or_can_be_used(good, untyped, capsys):
    outcomes, dearest = check(good, 100_000, seed=2, most_kinds=200)
    with capsys.disabled():
        for kind in ("loaded", "refused"):
            print(f"\n{kind}: {sum(n for (_, k), n in outcomes.items() if k == kind):,}", end="")  # noqa: T201
        print(f"\ndearest: {dearest[0]:.2f} units ({dearest[1]})")  # noqa: T201


def test_hostile_files_on_disk_are_refused_by_their_name(good, tmp_path):
    (tmp_path / "sent").mkdir()
    path = tmp_path / "sent" / "site-2.epvi"
    for _, content in itertools.islice(inputs(good, 3), 300):
        path.write_bytes(content)
        try:
            found = epvi.load(path)
        except EpviError as error:
            check_sentence(str(error), 400 + len(str(tmp_path)))
        else:
            assert isinstance(found, ShardFit | epvi.Posterior)


# Greedy files: well-formed, as far as it goes, and made to cost more than they weigh.


def filled(unit, size):
    return unit * (size // len(unit))


def header_only(text):
    return len(text).to_bytes(8, "little") + text


def changed(change):
    def make(good, size):
        parts = Parts(good)
        change(parts, parts.record, size)
        return parts.together()

    return make


def listed(unit, end=b"0"):
    return lambda good, size: header_only(b"[" + filled(unit, size) + end + b"]")


def names(count):
    return [f"{i:x}" for i in range(count)]


@changed
def many_keys(parts, record, size):
    record["fit"]["made_of"]["fixed"] = dict.fromkeys(names(size // 15), "")


@changed
def many_lists(parts, record, size):
    record["fit"]["made_of"]["columns"] = {name: [] for name in names(size // 15)}


@changed
def many_arrays(parts, record, size):
    end = [len(parts.data)] * 2
    parts.table |= {name: {"dtype": "F64", "shape": [0], "data_offsets": end} for name in names(size // 65)}


@changed
def many_texts(parts, record, size):
    record["fit"]["made_of"]["levels"] = {"x": ["ab"] * (size // 8)}


@changed
def a_long_history(parts, record, size):
    record["fit"]["history"] = [1.5] * min(100_000, size // 5)


@changed
def a_wide_text(parts, record, size):
    record["fit"]["label"] = "\U0001f600" + "a" * size


@changed
def many_parameters(parts, record, size):
    shapes = [[1] * (i % 14) + [1, 1] for i in range(990)]
    words = ["corr_cholesky", "corr_matrix", "simplex"]
    record["space"]["parameters"] += [
        {"name": f"p{i}", "shape": shape, "support": words[i % 3]} for i, shape in enumerate(shapes)
    ]


@changed
def many_bounds(parts, record, size):
    record["space"]["parameters"][1]["support"] = {
        "greater_than": [{"shape": [1, size // 4], "values": [0] * (size // 4)}]
    }


@changed
def many_groups(parts, record, size):
    record["space"]["exchangeable"] = [["w"] * (size // 10)]


@changed
def a_full_root(parts, record, size):
    d = int((size / 4) ** 0.5)
    root = np.eye(d)[np.tril_indices(d)][None]
    parts.set_arrays({"log_weights": np.zeros(1), "means": np.zeros((1, d)), "roots": root})
    record["fit"]["structure"] = "full"
    record["space"]["parameters"] = [{"name": "w", "shape": [d], "support": "real_vector"}]


@changed
def a_huge_correlation(parts, record, size):
    n = int((size / 4) ** 0.5)
    d = n * (n - 1) // 2
    parts.set_arrays({"log_weights": np.zeros(1), "means": np.zeros((1, d)), "roots": np.ones((1, 1))})
    record["space"]["parameters"] = [{"name": "w", "shape": [n, n], "support": "corr_cholesky"}]


GREEDY = {
    "tiny tables": listed(b'{"a":1}, '),
    "tiny tables beside a wide letter": listed(b'{"a":1}, ', '"\U0001f600"'.encode()),
    "empty tables": listed(b"{},      "),
    "tiny lists": listed(b"[1],     "),
    "nothing but brackets": listed(b"[],"),
    "tiny numbers": listed(b"999,"),
    "tiny texts": listed(b'"ab",'),
    "deep": lambda good, size: header_only(filled(b"[        ", size)),
    "names": lambda good, size: header_only(json.dumps(dict.fromkeys(names(size // 10), 0)).encode()),
    "keys": many_keys,
    "lists": many_lists,
    "arrays": many_arrays,
    "texts": many_texts,
    "a long history": a_long_history,
    "a wide text": a_wide_text,
    "parameters": many_parameters,
    "bounds": many_bounds,
    "groups": many_groups,
    "a full root": a_full_root,
    "a huge correlation": a_huge_correlation,
}


def peak(content):
    """The most of Python's and NumPy's memory while a file is read; safetensors' own is not seen."""
    tracemalloc.start()
    try:
        outcome(content)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [200_000, pytest.param(4_000_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", GREEDY)
def test_a_greedy_file_costs_little_more_than_its_size(good, untyped, name, size):
    content = GREEDY[name](good[0], size)
    assert cost(lambda: outcome(content))[1] < MOST_COST * max(1, size / 1_000_000)
    assert peak(content) < MOST_TIMES * len(content) + MOST_EXTRA
