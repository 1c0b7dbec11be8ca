"""Three file formats for a fit: safetensors (the .epvi file), npz and JSON, compared by size, time and safety.

Run: python benchmarks/files.py [--count 10000]. Every format holds the same record and arrays, and is read back to
them. Formats alternate file by file, over a ring of 100 files. Hostile files are made here and read in this process.
"""

import argparse
import hashlib
import io
import json
import pickle
import re
import tempfile
import time
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpyro.distributions import constraints
from safetensors import numpy as plain_safetensors

import epvi
from epvi.gaussian.mixture import Estimate
from epvi.ground.status import Status, StatusCode
from epvi.wire.envelope import Envelope, Malformed, seal, unseal
from epvi.wire.shard_fit import pack_fit, unpack_fit

RING = 100
WHOLE = "save and load"


class Format(NamedTuple):
    write: Callable[[Envelope], bytes]
    read: Callable[[bytes], Any]


def some_fit(d: int, full: bool, k: int = 4) -> epvi.ShardFit:
    rng = np.random.default_rng(0)
    factors = rng.normal(size=(k, d, d))
    covariances = factors @ np.swapaxes(factors, 1, 2) + np.eye(d) if full else rng.gamma(2.0, size=k)
    levels = {"sex": ("female", "male"), "pain": ("none", "typical", "atypical", "other")}
    names = {"x": tuple(f"column {i}" for i in range(d)), "y": ("outcome",)}
    points = tuple(rng.normal(size=16).tolist())
    return epvi.ShardFit(
        mixture=epvi.GaussianMixture.from_covariances(rng.normal(size=(k, d)), covariances),
        space=epvi.Space((epvi.Parameter("w", (d,), constraints.real),)),
        shard=2,
        num_shards=6,
        label="2 of 6 (hospital = Zürich)",
        prior=Fraction(1, 6),
        num_rows=1234,
        status=Status(StatusCode.CONVERGED, f"converged: {k} components."),
        history=tuple(rng.normal(size=10).tolist()),
        elbo=Estimate(np.asarray(-1.0), np.asarray(0.1)),
        gap=0.01,
        passes=25,
        seconds=1.5,
        made_of=epvi.Provenance("heart", "logistic", points, points, columns=names, levels=levels, rows="f" * 32),
    )


def write_npz(content: Envelope) -> bytes:
    file = io.BytesIO()
    record = np.frombuffer(json.dumps({"kind": content.kind, **content.record}).encode(), np.uint8)
    np.savez(file, record=record, **content.arrays)  # pyright: ignore[reportArgumentType] (no array is allow_pickle)
    return file.getvalue()


def read_npz(content: bytes) -> Any:
    with np.load(io.BytesIO(content)) as file:
        arrays = {name: file[name] for name in file.files}
    return json.loads(arrays.pop("record").tobytes()), arrays


def write_json(content: Envelope) -> bytes:
    arrays = {name: array.tolist() for name, array in content.arrays.items()}
    return json.dumps({"kind": content.kind, **content.record, "arrays": arrays}).encode()


def read_json(content: bytes) -> Any:
    record = json.loads(content)
    return record, {name: np.asarray(array) for name, array in record.pop("arrays").items()}


FORMATS = {
    "safetensors": Format(seal, unseal),
    "npz": Format(write_npz, read_npz),
    "JSON": Format(write_json, read_json),
}


def times(fit: epvi.ShardFit, folder: Path, count: int) -> dict[str, tuple[int, float, float]]:
    """Bytes, and the median microseconds to write and to read a file, by format and for `save` and `load`."""
    content = pack_fit(fit)

    def saved(name: str, path: Path) -> Path | int:
        return fit.save(path) if name == WHOLE else path.write_bytes(FORMATS[name].write(content))

    def loaded(name: str, path: Path) -> Any:
        return epvi.load(path) if name == WHOLE else FORMATS[name].read(path.read_bytes())

    names = [*FORMATS, WHOLE]
    spent = np.empty((count, len(names), 2))
    for i in range(-20, count):  # Negative ones are warm-up.
        for j, name in enumerate(names):
            path = folder / f"{i % RING}.{name}"
            path.unlink(missing_ok=True)  # Some file systems wait for the disk when a file is overwritten.
            start = time.perf_counter()
            saved(name, path)
            middle = time.perf_counter()
            loaded(name, path)
            spent[max(i, 0), j] = middle - start, time.perf_counter() - middle
    sizes = [(folder / f"0.{name}").stat().st_size for name in names]
    typical = 1e6 * np.median(spent, axis=0)
    return {name: (size, *row) for name, size, row in zip(names, sizes, typical.tolist(), strict=True)}


# Hostile files.

RAN = []


def run() -> None:
    RAN.append("the file's code ran")


class Code:
    """An object whose unpickling runs code."""

    def __reduce__(self) -> tuple:
        return run, ()


def npz_of(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, member in members.items():
            archive.writestr(name.rstrip("_") + ".npy", member)
    return file.getvalue()


def npy(array: np.ndarray, **changes: Any) -> bytes:
    """The bytes of a .npy file, with changed entries in its header."""
    file = io.BytesIO()
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape, **changes}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + array.tobytes()


def with_text(good: bytes, old: bytes, new: bytes) -> bytes:
    """A .epvi file with a changed text in its header and a valid checksum."""
    size = int.from_bytes(good[:8], "little")
    header = re.sub(rb"[0-9a-f]{64}", b"0" * 64, good[8 : 8 + size], count=1)
    changed = header.replace(old, new, 1)
    assert changed != header
    content = len(changed).to_bytes(8, "little") + changed + good[8 + size :]
    return content.replace(b"0" * 64, hashlib.sha256(content).hexdigest().encode(), 1)


def flipped(content: bytes) -> bytes:
    """The bytes with one bit flipped, in a number of the last array."""
    i = len(content) - 20 if content[:2] != b"PK" else content.index(b"means.npy") + 300
    return content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :]


def pickled() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([Code()], object), allow_pickle=True)
    return npz_of(means=file.getvalue())


def load_epvi(content: bytes) -> Any:
    return unpack_fit(unseal(content))


def load_pickled(content: bytes) -> Any:
    with np.load(io.BytesIO(content), allow_pickle=True) as file:
        file["means"]
    return RAN.pop()


def first_array(content: bytes) -> Any:
    with np.load(io.BytesIO(content)) as file:
        return file["means"].ravel()[:1]


def bomb(size: int = 50_000_000) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, means=np.zeros(size // 8))
    return file.getvalue()


def attacks(fit: epvi.ShardFit) -> Iterator[tuple[str, str, bytes, Callable[[bytes], Any]]]:
    """Hostile files: (description, format, content, reader)."""
    good, means = pack_fit(fit), np.asarray(fit.mixture.means)
    epvi_file, text, archive = seal(good), write_json(good), write_npz(good)
    asks = "asks for 74 GiB"
    lying = with_text(epvi_file, b'"shape":[4,19]', b'"shape":[10000000000]')
    yield asks, ".epvi", lying, load_epvi
    yield asks, "safetensors", lying, plain_safetensors.load
    yield asks, "npz", npz_of(means=npy(means, shape=(10**10,))), first_array
    yield "unpacks to 50 MB", "npz", bomb(), first_array
    yield "runs code", ".epvi", pickled(), load_epvi
    yield "runs code", "npz", pickled(), first_array
    yield "runs code", "npz, allow_pickle", pickled(), load_pickled
    yield "runs code", "pickle", pickle.dumps(Code()), lambda content: (pickle.loads(content), RAN.pop())[1]
    yield "NaN in the record", ".epvi", with_text(epvi_file, b'gap\\":0.01', b'gap\\":NaN'), load_epvi
    yield "NaN in the record", "JSON", b'{"gap": NaN}', json.loads
    deep = b"[ " * 100_000
    yield "100,000 brackets", ".epvi", len(deep).to_bytes(8, "little") + deep, load_epvi
    yield "100,000 brackets", "JSON", deep, json.loads
    yield "one name twice", ".epvi", with_text(epvi_file, b'passes\\":', b'shard\\":'), load_epvi
    yield "one name twice", "JSON", b'{"shard": 1, "shard": 2}', json.loads
    yield "one name twice", "npz", npz_of(means=npy(means), means_=npy(means + 1)), first_array
    yield "one bit changed", ".epvi", flipped(epvi_file), load_epvi
    yield "one bit changed", "safetensors", flipped(epvi_file), plain_safetensors.load
    yield "one bit changed", "npz", flipped(archive), read_npz
    yield "one bit changed", "JSON", flipped(text), read_json
    for name, content, read in (
        (".epvi", epvi_file, load_epvi),
        ("npz", archive, read_npz),
        ("JSON", text, read_json),
    ):
        yield "cut in half", name, content[: len(content) // 2], read


def observed(content: bytes, read: Callable[[bytes], Any]) -> tuple[str, int]:
    """What reading the file did, and its peak memory in bytes."""
    tracemalloc.start()
    try:
        found = read(content)
        said = f"taken: {found!r}" if isinstance(found, str | dict | np.ndarray) else "taken"
    except Malformed as error:
        said = f"refused: {error}"
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return " ".join(said.split())[:80], peak


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=10_000, help="how many files of each are written and read")
    count = parser.parse_args().count
    fits = {"spherical, K = 4, d = 19": some_fit(19, full=False), "full, K = 4, d = 50": some_fit(50, full=True)}
    found = {}
    print(f"{count:,} files of each, taking turns; median µs a file\n{'':42}{'bytes':>9}{'write':>9}{'read':>9}")
    for what, fit in fits.items():
        with tempfile.TemporaryDirectory() as folder:
            found[what] = times(fit, Path(folder), count)
        for name, (size, writing, reading) in found[what].items():
            print(f"{what:28}{name:14}{size:9,}{writing:9,.0f}{reading:9,.0f}")
    print("(safetensors with its checksum; save and load also sync to disk, rename, and check all that is in it)\n")
    harmed = try_attacks(fits["spherical, K = 4, d = 19"])
    print("\n" + conclusion(found, harmed))


def try_attacks(fit: epvi.ShardFit) -> dict[str, int]:
    """Print what every hostile file did; count by format those accepted, or needing over 100 times their size."""
    with warnings.catch_warnings():
        # zipfile warns when a duplicate name is written, but not when it is read.
        warnings.simplefilter("ignore", UserWarning)
        hostile = list(attacks(fit))
    harmed = dict.fromkeys([".epvi", "npz", "JSON"], 0)
    print(f"{'a hostile file':20}{'read as':20}{'bytes':>9}{'memory':>16}  what happened")
    for what, name, content, read in hostile:
        said, peak = observed(content, read)
        print(f"{what:20}{name:20}{len(content):9,}{peak:16,}  {said}")
        if name in harmed:
            harmed[name] += said.startswith("taken") or peak > 100 * len(content)
    return harmed


def conclusion(found: dict[str, dict[str, tuple[int, float, float]]], harmed: dict[str, int]) -> str:
    """Whether the figures support the choice of safetensors."""
    lines, least, where = [], np.inf, ""
    for what, rows in found.items():
        for other in ("npz", "JSON"):
            ratios = np.divide(rows[other], rows["safetensors"])
            lines.append(
                f"{what}: {other} takes {ratios[0]:.1f}x the bytes, {ratios[1]:.1f}x to write, {ratios[2]:.1f}x to read"
            )
            if ratios.min() < least:
                least, where = ratios.min(), f"{other}, {what}"
    counts = ", ".join(f"{name} {count}" for name, count in harmed.items())
    behind = "never behind" if least >= 0.95 else f"at the worst {1 / least:.1f}x behind ({where})"
    holds = "holds up" if harmed[".epvi"] == 0 and least > 1 / 3 else "does not hold up: look above"
    lines.append(f"Hostile files that were taken, or took more than 100 times their size: {counts}.")
    return "\n".join(["Beside safetensors,", *lines, f"Safetensors is {behind}; as a choice it {holds}."])


if __name__ == "__main__":
    main()
