"""Hand-over files: what is written is what is read, and a file that is wrong in any way is refused by its name."""

import dataclasses
import json
import os
import pickle
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hostile import sealed
from sentences import refused
from some_fits import array, entry, mixture, some_fit
from some_supports import SUPPORTS

import epvi
from epvi.files import load_any, save_stats
from epvi.gaussian.mixture import Estimate
from epvi.ground.status import Status, StatusCode
from epvi.hub.posterior.posterior import pack_posterior
from epvi.wire import envelope
from epvi.wire.codec import read_space
from epvi.wire.column_stats import ColumnStats, Stats
from epvi.wire.envelope import Envelope, seal, unseal
from epvi.wire.record import Record
from epvi.wire.shard_fit import describe_space, pack_fit, unpack_fit

VERSION_1 = Path(__file__).parents[1] / "files" / "version-1"


def same(a, b):
    """Equal in everything, to the last bit of every array; NaN equals NaN."""
    assert repr(a.made_of) == repr(b.made_of)
    assert a.space.signature() == b.space.signature()
    for name in ("log_weights", "means", "roots"):
        np.testing.assert_array_equal(getattr(a.mixture, name), getattr(b.mixture, name))
    assert a.mixture.structure == b.mixture.structure
    plain = [f.name for f in dataclasses.fields(a) if f.name not in ("mixture", "space", "made_of", "file")]
    assert all(repr(getattr(a, name)) == repr(getattr(b, name)) for name in plain)


@pytest.mark.parametrize("structure", [epvi.Spherical(), epvi.Diagonal(), epvi.Full()])
def test_a_fit_comes_back_as_it_was(tmp_path, structure):
    fit = some_fit(structure=structure)
    path = fit.save(tmp_path / "site-2.epvi")
    again = epvi.load(path)
    same(again, fit)
    assert again.file == str(path)
    assert again.called.startswith(f"{path} (shard 2 of 6")


@pytest.mark.parametrize("support", SUPPORTS)
def test_every_support_comes_back_without_the_model(support):
    space = some_fit(support=support).space
    described = json.loads(json.dumps(describe_space(space)))
    again = read_space(Record({"space": described}), space.dim)
    assert again.signature() == space.signature()
    theta = np.random.default_rng(1).normal(size=(5, space.dim))
    for name, values in space.constrain(theta).items():
        np.testing.assert_array_equal(again.constrain(theta)[name], values)


def test_a_posterior_comes_back_with_its_fits_and_can_still_be_updated(tmp_path):
    fits = [dataclasses.replace(some_fit(shard=m, k=2), num_shards=3, prior=Fraction(1, 3)) for m in (1, 2, 3)]
    fits = [dataclasses.replace(f, made_of=dataclasses.replace(f.made_of, rows=f"{f.shard}")) for f in fits]
    made = epvi.combine(fits, epvi.Subset(num_samples=20, chain=epvi.Chain(num_samples=40)), seed=5)
    again = epvi.load(made.save(tmp_path / "posterior.epvi"))
    np.testing.assert_array_equal(again.mixture.means, made.mixture.means)
    np.testing.assert_array_equal(again.mixture.roots, made.mixture.roots)
    assert (again.choices, again.status, repr(again)) == (made.choices, made.status, repr(made))
    for a, b in zip(again.fits, made.fits, strict=True):
        same(a, b)
    np.testing.assert_array_equal(again.sample(10, seed=1)["w"], made.sample(10, seed=1)["w"])
    without = dataclasses.replace(again, fits=again.fits[:2])
    np.testing.assert_array_equal(without.update(fits[2]).mixture.means, made.mixture.means)


def test_bounds_that_are_not_finite_come_back_as_unknown(tmp_path):
    fit = dataclasses.replace(some_fit(), gap=np.inf, history=(-np.inf, -1.0))
    again = epvi.load(fit.save(tmp_path / "a.epvi"))
    assert np.isnan(again.gap)
    assert np.isnan(again.history[0])


def test_a_normaliser_without_a_standard_error_comes_back_as_unknown(tmp_path):
    fit = dataclasses.replace(some_fit(k=2), num_shards=1, shard=1, prior=Fraction(1))
    made = epvi.combine([fit])
    unsure = dataclasses.replace(made.product, log_normaliser=Estimate(np.asarray(-1.5), np.asarray(np.nan)))
    again = epvi.load(dataclasses.replace(made, product=unsure).save(tmp_path / "a.epvi"))
    assert again.product.log_normaliser.value == -1.5
    assert np.isnan(again.product.log_normaliser.standard_error)


def with_status(tmp_path, **status):
    content = pack_fit(some_fit())
    fit = {**content.record["fit"], "status": status}
    path = tmp_path / "site-2.epvi"
    path.write_bytes(seal(content._replace(record={**content.record, "fit": fit})))
    return path


def test_a_code_of_a_status_comes_back_and_may_be_left_out_or_unknown(tmp_path):
    flat = dataclasses.replace(some_fit(), status=Status(StatusCode.FLAT_DIRECTION, "flat direction."))
    assert epvi.load(flat.save(tmp_path / "a.epvi")).status == flat.status
    for ok, code in ((True, StatusCode.USABLE), (False, StatusCode.UNUSABLE)):
        older = with_status(tmp_path, ok=ok, text="said by an earlier version.")
        assert epvi.load(older).status == Status(code, "said by an earlier version.")
        later = with_status(tmp_path, ok=ok, code="levitating", text="said by a later version.")
        assert epvi.load(later).status == Status(code, "said by a later version.")


def test_the_refusal_of_a_file_comes_back_from_another_process(tmp_path):
    path = tmp_path / "site-2.epvi"
    path.write_bytes(b"x")
    with pytest.raises(envelope.UnusableFileError) as error:
        epvi.load(path)
    again = pickle.loads(pickle.dumps(error.value))
    assert (str(again), again.what) == (str(error.value), error.value.what)
    assert str(again).startswith(again.what)


def test_a_code_that_contradicts_its_status_is_refused(tmp_path):
    path = with_status(tmp_path, ok=True, code="flat-direction", text="all is well.")
    refused(lambda: epvi.load(path), "its status is flat-direction, which is not ok, and it says otherwise", 500)
    path = with_status(tmp_path, ok=True, code=7, text="all is well.")
    refused(lambda: epvi.load(path), "its code is not a printable text", 500)


def test_a_label_that_a_terminal_would_obey_is_made_harmless(tmp_path):
    fit = dataclasses.replace(some_fit(), label="2 of 6 (site = \x1b[31mred\n)")
    assert epvi.load(fit.save(tmp_path / "a.epvi")).label == "2 of 6 (site = ?[31mred?)"


@pytest.mark.parametrize("name", ["posterior.epvi", "shard-full.epvi", "shard-spherical.epvi"])
def test_files_of_version_1_stay_readable(name):
    found = epvi.load(VERSION_1 / name)
    expected = json.loads((VERSION_1.parent / "version-1.json").read_text())[name]
    np.testing.assert_allclose(found.mixture.mean(), expected["mean"], rtol=1e-12)
    np.testing.assert_allclose(found.mixture.sd(), expected["sd"], rtol=1e-12)
    assert found.space.describe() == expected["space"]


def test_statistics_of_version_1_stay_readable():
    found = load_any(VERSION_1 / "stats.epvi")
    assert found.columns["chol"] == ColumnStats(280, 25, 246.5, 0.0, 51.75)


def test_the_file_is_an_ordinary_safetensors_file(tmp_path):
    from safetensors import safe_open

    fit = some_fit(structure=epvi.Diagonal())
    with safe_open(fit.save(tmp_path / "a.epvi"), framework="numpy") as file:
        np.testing.assert_array_equal(file.get_tensor("means"), fit.mixture.means)
        assert json.loads(file.metadata()["epvi"])["kind"] == "shard"


def test_spherical_fits_are_small(tmp_path):
    fit = dataclasses.replace(
        some_fit(structure=epvi.Spherical()),
        mixture=mixture(4, 19, epvi.Spherical()),
        space=epvi.Space((epvi.Parameter("w", (19,), SUPPORTS["real"][1]),)),
    )
    assert fit.save(tmp_path / "a.epvi").stat().st_size < 8_000


# Writing.


def test_a_file_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    path = some_fit().save(tmp_path / "a.epvi")
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    refused(lambda: some_fit(shard=3).save(path), r"a\.epvi cannot be written: No space left on device")
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.epvi"]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    refused(lambda: some_fit().save(tmp_path / "nowhere" / "a.epvi"), r"nowhere/a\.epvi cannot be written")
    refused(lambda: some_fit().save(tmp_path), "is a folder")


def test_what_could_not_be_read_again_is_not_written(tmp_path):
    fit = some_fit()
    odd = epvi.Space((epvi.Parameter("w\n", (2,), SUPPORTS["real"][1]), *fit.space.parameters[1:]))
    path = tmp_path / "a.epvi"
    refused(lambda: dataclasses.replace(fit, space=odd).save(path), r"a\.epvi was not written, .*its name is not a")
    assert not path.exists()


# Files that are wrong.


def changed(change, fit=None):
    """The bytes of a well-sealed file with something else in it."""
    content = pack_fit(fit or some_fit())
    record, arrays = json.loads(json.dumps(content.record)), {k: np.array(v) for k, v in content.arrays.items()}
    change(record, arrays)
    return seal(Envelope(content.kind, record, arrays))


WRONG = {
    "other shapes": (array("means", np.zeros((3, 4))), "parameters do not take the 4 dimensions"),
    "no components": (array("means", np.zeros((0, 6))), "parameters do not take|shapes"),
    "NaN means": (array("means", np.full((3, 6), np.nan)), "not finite"),
    "infinite roots": (array("roots", np.full((3, 21), np.inf)), "not finite"),
    "roots of endless variances": (
        array("roots", np.where(np.equal(*np.tril_indices(6)), 1e-70, 1e70) * np.ones((3, 1))),
        "variances above 1e150",
    ),
    "negative roots": (array("roots", np.full((3, 21), -1.0)), "positive-definite"),
    "weights": (array("log_weights", np.zeros(3)), "weights do not sum to 1"),
    "NaN weights": (array("log_weights", np.full(3, np.nan)), "weights do not sum to 1"),
    "huge weights": (array("log_weights", np.full(3, 1e308)), "weights do not sum to 1"),
    "two dimensions of weights": (array("log_weights", np.zeros((3, 1))), "shapes"),
    "shard 0": (entry("fit", "shard", value=0), "shard is not a whole number from 1 to 6"),
    "shard 7 of 6": (entry("fit", "shard", value=7), "shard is not a whole number from 1 to 6"),
    "a shard that is true": (entry("fit", "shard", value=True), "shard is not a whole number"),
    "a billion shards": (entry("fit", "num_shards", value=10**9), "num_shards is not a whole number"),
    "negative rows": (entry("fit", "num_rows", value=-1), "num_rows is not a whole number"),
    "share": (entry("fit", "prior", value="7/6"), "prior is not a fraction from 0 to 1"),
    "a share of nothing": (entry("fit", "prior", value="1/0"), "prior is not a fraction"),
    "a share that is a float": (entry("fit", "prior", value=0.1), "prior is not a fraction"),
    "an endless share": (entry("fit", "prior", value="1e-999999999"), "prior is not a fraction"),
    "label": (entry("fit", "label", value="\x1b]0;owned\x07"), "label is not a printable text"),
    "a long label": (entry("fit", "label", value="x" * 10_000), "label is not a printable text"),
    "structure": (entry("fit", "structure", value="banded"), "structure is not one of"),
    "status": (entry("fit", "status", value="fine"), "status is not a table"),
    "elbo": (entry("fit", "elbo", value=[1.0]), "elbo is not a value and a standard error"),
    "history": (entry("fit", "history", value="long"), "history is not a list"),
    "no fit": (entry("fit", value=[]), "fit is not a table"),
    "seconds": (entry("fit", "seconds", value="1"), "seconds is not a number"),
    "key": (entry("fit", "made_of", "key", value=[-1]), "key is not a seed"),
    "scale": (entry("fit", "made_of", "standardised", value={"age": [0, 0]}), "scale that is not positive"),
    "no parameters": (entry("space", "parameters", value=[]), "do not take the 6 dimensions"),
    "names": (entry("space", "parameters", 1, "name", value="w"), "name twice"),
    "a huge parameter": (entry("space", "parameters", 0, "shape", value=[2**30, 2**30]), "larger than its means"),
    "a shape of nothing": (entry("space", "parameters", 0, "shape", value=[2**30, 0]), "larger than its means"),
    "no matrices, but huge ones": (
        entry("space", "parameters", 1, value={"name": "z", "shape": [0, 9000, 9000], "support": "corr_cholesky"}),
        "larger than its means",
    ),
    "fewer than no coordinates": (
        entry("space", "parameters", 1, value={"name": "z", "shape": [0], "support": {"zero_sum": [1]}}),
        "does not fit its support",
    ),
    "a bound beyond 64 bits": (
        entry("space", "parameters", 1, "support", value={"greater_than": [10**19]}),
        "does not fit its support",
    ),
    "too many parameters": (entry("space", "parameters", value=["a parameter"] * 1001), "at most 1,000"),
    "one parameter exchangeable many times": (
        entry("space", "exchangeable", value=[["w"] * 3000]),
        "more than 64 parameters",
    ),
    "nothing that is exchangeable": (
        lambda record, arrays: record["space"].update(
            parameters=[*record["space"]["parameters"], {"name": "z", "shape": [0], "support": "real"}],
            exchangeable=[["z"]],
        ),
        "need leading axes",
    ),
    "a long name that nobody has": (
        entry("space", "exchangeable", value=[["x" * 2000]]),
        "exchangeable names 'xxx",
    ),
    "a support by another name": (entry("space", "parameters", 1, "support", value="__class__"), "support"),
    "a support with other bounds": (entry("space", "parameters", 1, "support", value={"interval": [1]}), "bounds"),
    "bounds of text": (entry("space", "parameters", 1, "support", value={"greater_than": ["a"]}), "not a number"),
    "nested supports": (
        entry("space", "parameters", 1, "support", value={"independent": [{"independent": ["real", 99]}, 1]}),
        "number of dimensions",
    ),
    "a simplex of a scalar": (entry("space", "parameters", 1, "support", value="corr_cholesky"), "support|dimensions"),
    "exchangeable": (entry("space", "exchangeable", value=[["nobody"]]), "exchangeable names 'nobody'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_sealed_file_with_something_wrong_in_it_is_refused(tmp_path, name):
    change, sentence = WRONG[name]
    path = tmp_path / "site.epvi"
    path.write_bytes(changed(change))
    refused(lambda: epvi.load(path), rf"site\.epvi is not a usable \.epvi file: .*({sentence})")


def header(content):
    size = int.from_bytes(content[:8], "little")
    return content[8 : 8 + size], content[8 + size :]


def with_header(text, rest=b""):
    return len(text).to_bytes(8, "little") + text + rest


def damaged():
    good = seal(pack_fit(some_fit()))
    table, rest = header(good)
    yield "nothing", b"", "ends before its header"
    yield "random", np.random.default_rng(0).bytes(500), "ends before its header"
    yield "cut", good[:-1], "checksum is wrong"
    yield "cut header", good[:100], "ends before its header"
    yield "one bit", good[:-20] + bytes([good[-20] ^ 1]) + good[-19:], "checksum is wrong"
    yield "more", good + b"\0" * 8, "checksum is wrong"
    yield "a lying header size", (2**63).to_bytes(8, "little") + good[8:], "ends before its header"
    yield "not JSON", with_header(b"{" + table[2:], rest), "not JSON|not described|twice|epvi did not write it"
    yield "brackets", with_header(b"[" * 100_000), "nothing but brackets"
    yield (
        "deep",
        with_header(b'{"a":' * 2000 + b"1" + b"}" * 2000 + b" " * 20_000),
        "not JSON|nothing but brackets|epvi",
    )
    yield (
        "a type that a terminal would obey",
        sealed(with_header(table.replace(b'"F64"', b'"\\u001b[2J"', 1), rest)),
        "holds numbers that are not F64",
    )
    yield "no record", with_header(b"{}"), "epvi did not write it"
    yield "NaN", with_header(table.replace(b'num_rows\\":123', b'num_rows\\":NaN'), rest), "not finite"
    yield "1e999", with_header(table.replace(b'num_rows\\":123', b'num_rows\\":1e999'), rest), "not finite"
    yield "digits", with_header(table.replace(b'num_rows\\":123', b'num_rows\\":' + b"1" * 5000), rest), "twenty digits"
    yield "twins", with_header(table[:-1].rstrip(b" }") + b'},"means":{}}', rest), "twice|not JSON"
    yield "twins within", with_header(table.replace(b"num_rows", b"shard"), rest), "twice"
    yield (
        "another kind",
        with_header(table.replace(b'kind\\":\\"shard', b'kind\\":\\"pickl'), rest),
        "kind is not one of",
    )
    yield "newer", with_header(table.replace(b'format\\":1', b'format\\":2'), rest), "version 2.*Update epvi"
    yield "older", with_header(table.replace(b'format\\":1', b'format\\":0'), rest), "which version"


@pytest.mark.parametrize(("content", "sentence"), [pytest.param(c, s, id=name) for name, c, s in damaged()])
def test_a_damaged_file_is_refused(tmp_path, content, sentence):
    path = tmp_path / "site.epvi"
    path.write_bytes(content)
    refused(lambda: epvi.load(path), rf"site\.epvi is not a usable \.epvi file: .*({sentence})")


def test_every_single_bit_counts():
    good = seal(pack_fit(some_fit(k=1, structure=epvi.Spherical(), support="scalar")))
    same(unpack_fit(unseal(good)), some_fit(k=1, structure=epvi.Spherical(), support="scalar"))
    for i in np.random.default_rng(0).choice(8 * len(good), 2000, replace=False):
        bad = bytearray(good)
        bad[i // 8] ^= 1 << (i % 8)
        with pytest.raises(envelope.Malformed):
            unpack_fit(unseal(bytes(bad)))


def test_other_numbers_than_float64_are_refused(tmp_path):
    from safetensors.numpy import save

    table, _ = header(seal(pack_fit(some_fit())))
    text = json.loads(table)["__metadata__"]["epvi"]
    text = text.replace(json.loads(text)["sha256"], "0" * 64)
    content = save({"means": np.zeros((3, 6), np.float32)}, metadata={"epvi": text})
    path = tmp_path / "a.epvi"
    path.write_bytes(content.replace(b"0" * 64, envelope._digest(content), 1))
    refused(lambda: epvi.load(path), "'means' holds numbers that are not F64")


def test_what_is_no_file_is_refused(tmp_path):
    refused(lambda: epvi.load(tmp_path / "none.epvi"), r"none\.epvi cannot be read: No such file")
    refused(lambda: epvi.load(tmp_path), "is not a file")
    os.mkfifo(tmp_path / "pipe.epvi")
    refused(lambda: epvi.load(tmp_path / "pipe.epvi"), "pipe.epvi is not a file")
    refused(lambda: epvi.load("/dev/zero"), "/dev/zero is not a file")


def test_a_name_that_a_terminal_would_obey_is_made_harmless(tmp_path):
    (tmp_path / "a\n\x1b[2J.epvi").write_bytes(b"")
    refused(lambda: epvi.load(tmp_path / "a\n\x1b[2J.epvi"), r"a\?\?\[2J\.epvi is not a usable \.epvi file")
    refused(lambda: epvi.load(tmp_path / "b\n.epvi"), r"b\?\.epvi cannot be read")
    (tmp_path / "c\n.epvi").write_bytes(seal(Envelope("draws", {}, {})))
    refused(lambda: epvi.load(tmp_path / "c\n.epvi"), r"c\?\.epvi is not a usable \.epvi file: it has no array means")
    good = some_fit().save(tmp_path / "d\n.epvi")
    assert epvi.load(good).called.isprintable()


def test_statistics_of_columns_come_back_and_are_checked(tmp_path):
    stats = Stats({"age": ColumnStats(303, 2, 54.4, 1e-17, 9.0), "Größe [cm]": ColumnStats(10, 0, -1.0, 0.0, 0.0)})
    path = save_stats(tmp_path / "site.epvi", stats)
    assert load_any(path) == stats
    refused(lambda: epvi.load(path), r"site\.epvi holds statistics of columns: pass a file of a shard's fit")
    for name, value in (("sd", -1.0), ("count", 0), ("mean", None), ("mean", True), ("rest", 1.0)):
        columns = stats.as_json()
        columns["age"] = {**columns["age"], name: value}
        path.write_bytes(seal(Envelope("stats", {"columns": columns}, {})))
        refused(lambda: load_any(path), rf"site\.epvi is not a usable \.epvi file: column 'age' .*{name}")
    path.write_bytes(seal(Envelope("stats", {"columns": {"\x1b[31m": stats.as_json()["age"]}}, {})))
    refused(lambda: load_any(path), "not a printable text")


def test_a_stored_product_cannot_ask_for_endless_work(tmp_path):
    fit = dataclasses.replace(some_fit(), num_shards=2, prior=Fraction(1))
    made = epvi.combine([fit], epvi.Anchored(num_samples=500))
    content = pack_posterior(made)
    path = tmp_path / "a.epvi"
    path.write_bytes(seal(content))
    assert epvi.load(path).choices.product == epvi.Anchored(num_samples=500)
    product = {**content.record["product"], "num_samples": 10**18}
    path.write_bytes(seal(content._replace(record={**content.record, "product": product})))
    refused(lambda: epvi.load(path), "'num_samples' that is not a number up to 100,000,000")
