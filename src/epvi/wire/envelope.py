"""The file format: a safetensors file with one JSON record in its metadata and a SHA-256 checksum.

Takes and gives an `Envelope`: its kind, its record (plain JSON) and its arrays (float64). Files are untrusted: nothing
in them is executed, claimed sizes are compared with the real ones before anything is allocated, and every fault raises
`Malformed` with an explanation.
"""

import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from epvi.ground.atomic import write_whole
from epvi.ground.errors import EpviError
from epvi.ground.printable import shown

FORMAT = 1
KINDS = ("shard", "posterior", "stats", "draws", "scores", "moments")

_FIELD = "epvi"
# Stands in the place of the checksum while it is computed: SHA-256 has 64 hexadecimal digits.
_UNSEALED = "0" * 64
# Least characters per bracket in a JSON header: parsed lists and objects take far more memory than their text. Headers
# that epvi writes have about twenty, and their shortest possible entry, `"x":["y"],`, has ten.
_CHARACTERS_PER_BRACKET = 9
# Axes of an array. Judgement: arrays of epvi have at most three.
_MOST_DIMENSIONS = 8
# Bytes of a file, which is read into memory whole. Judgement: 5000 fits with full covariances in 450 dimensions.
_MOST_BYTES = 2**32
# Bytes of the JSON header: the limit of the safetensors library.
_MOST_HEADER = 100_000_000


class Malformed(Exception):  # noqa: N818 (it is a clause of a sentence)
    """What is wrong with a file, as a clause: "its means are not finite"."""

    remedy = "Ask for it to be sent or written again."


class TooNew(Malformed):
    """A file of a later version of the format."""

    remedy = "Update epvi."


class Foreign(Malformed):
    """A file that epvi did not write."""

    remedy = "Name a file that epvi has written, or ask for it to be sent again."


class UnusableFileError(EpviError):
    """A file that cannot be used: `what` names it and says why, `rest` completes the sentence with a remedy.

    A caller that knows a better remedy takes `what` alone.
    """

    def __init__(self, what: str, rest: str) -> None:
        super().__init__(what + rest)
        self.what, self.rest = shown(what), rest

    def __reduce__(self) -> tuple[type["UnusableFileError"], tuple[str, str]]:
        """Pickle both arguments, which the default for exceptions does not."""
        return UnusableFileError, (self.what, self.rest)


class Envelope(NamedTuple):
    """The content of a file.

    Attributes:
        kind: one of `KINDS`.
        record: JSON.
        arrays: float64 arrays by name.
    """

    kind: str
    record: dict[str, Any]
    arrays: dict[str, np.ndarray]


def save(path: str | os.PathLike, envelope: Envelope, read: Callable[[Envelope], Any]) -> Path:
    """Write the file by atomic rename, after checking that `read` accepts its content."""
    content = seal(envelope)
    try:
        read(unseal(content))
    except Malformed as error:
        raise EpviError(f"{shown(path)} was not written, since it could not be read again: {error}.") from error
    return write_whole(path, content)


def load(path: str | os.PathLike) -> Envelope:
    """Read a file and check format and checksum; record and arrays are checked by whoever unpacks them."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            # Opening a named pipe would block until somebody writes to it.
            raise UnusableFileError(f"{shown(path)} is not a file", ": pass a file that epvi has written.")
        if status.st_size > _MOST_BYTES:
            raise Malformed(f"it has {status.st_size:,} bytes, and no hand-over file is that large")
        with open(path, "rb") as file:
            content = file.read(status.st_size)
        return unseal(content)
    except OSError as error:
        raise UnusableFileError(f"{shown(path)} cannot be read: {error.strerror or error}", ".") from error
    except Malformed as error:
        raise unusable(path, error) from error


def unusable(path: str | os.PathLike, error: Malformed) -> UnusableFileError:
    """The error that names the file."""
    return UnusableFileError(f"{shown(path)} is not a usable .epvi file: {error}", f". {error.remedy}")


def seal(envelope: Envelope) -> bytes:
    """Serialise an envelope, with its checksum."""
    from safetensors.numpy import save as serialise

    record = {"format": FORMAT, "kind": envelope.kind, "sha256": _UNSEALED, **envelope.record}
    text = json.dumps(record, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    arrays = {name: np.ascontiguousarray(array, "<f8") for name, array in envelope.arrays.items()}
    content = serialise(arrays, metadata={_FIELD: text})
    return content.replace(_UNSEALED.encode(), _digest(content), 1)


def unseal(content: bytes) -> Envelope:
    """The envelope of a file's bytes, after all checks of format and checksum."""
    from safetensors import SafetensorError, deserialize

    table = _header(content)
    record = _record(table)
    sha256 = record.pop("sha256", None)
    version, kind = record.pop("format", None), record.pop("kind", None)
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise Malformed("it does not say which version of the format it has")
    if version > FORMAT:
        raise TooNew(f"it has version {version} of the format and this epvi reads up to {FORMAT}")
    if kind not in KINDS:
        raise Malformed(f"its kind is not one of {', '.join(KINDS)}")
    if not isinstance(sha256, str) or not re.fullmatch("[0-9a-f]{64}", sha256):
        raise Malformed("it has no checksum")
    if _digest(content.replace(sha256.encode(), _UNSEALED.encode(), 1)) != sha256.encode():
        raise Malformed("its checksum is wrong, so it was damaged or changed on the way")
    for name, entry in table.items():
        _check_entry(name, entry)
    table.clear()  # Free it before the arrays are read: for many small arrays it is larger than they are.
    try:
        found = deserialize(content)
        arrays = {name: np.frombuffer(part["data"], "<f8").reshape(part["shape"]) for name, part in found}
    except (SafetensorError, ValueError, OverflowError):
        raise Malformed("its arrays are not where its header says") from None
    return Envelope(kind, record, arrays)


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _header(content: bytes) -> dict[str, Any]:
    """The header of a safetensors file: the table of its arrays, and the metadata."""
    size = int.from_bytes(content[:8], "little")
    if len(content) < 8 or size > min(len(content) - 8, _MOST_HEADER):
        raise Foreign("it ends before its header does, or is of another kind")
    table = _json(content[8 : 8 + size])
    if not isinstance(table, dict):
        raise Malformed("its header is not a table")
    return table


def _record(table: dict[str, Any]) -> dict[str, Any]:
    metadata = table.pop("__metadata__", None)
    text = metadata.get(_FIELD) if isinstance(metadata, dict) else None
    if not isinstance(text, str):
        raise Foreign("epvi did not write it")
    record = _json(text.encode(errors="replace"))
    if not isinstance(record, dict):
        raise Malformed("its record is not a table")
    return record


def _check_entry(name: str, entry: Any) -> None:
    """Accept float64 arrays of few dimensions only, whose shape agrees with their number of bytes."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise Malformed(f"its array {name[:40]!r} is not described as safetensors has it")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if entry["dtype"] != "F64":
        raise Malformed(f"its array {name[:40]!r} holds numbers that are not F64")
    if not _counts(shape) or not _counts(offsets) or len(shape) > _MOST_DIMENSIONS or len(offsets) != 2:
        raise Malformed(f"its array {name[:40]!r} has no valid shape")
    if 8 * math.prod(shape) != offsets[1] - offsets[0]:
        raise Malformed(f"its array {name[:40]!r} has another size than its shape says")


def _counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**63 for value in values)


def _json(text: bytes) -> Any:
    brackets = text.count(b"[") + text.count(b"{")
    if brackets > 64 + len(text) // _CHARACTERS_PER_BRACKET:
        raise Malformed("its header is nothing but brackets")
    try:
        return json.loads(text, object_pairs_hook=_without_twins, **_NUMBERS)
    except (ValueError, RecursionError):
        raise Malformed("its header is not JSON") from None


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise Malformed("its header names something twice")
    return table


def _real(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise Malformed("its header holds a number that is not finite")
    return number


def _whole(digits: str) -> int:
    if len(digits) > 20:
        raise Malformed("its header holds a number of more than twenty digits")
    return int(digits)


_NUMBERS: dict[str, Any] = {"parse_int": _whole, "parse_float": _real, "parse_constant": _real}
