"""Files that somebody might send: good ones with something else in them, most sealed again so that they go deep.

`inputs(seed)` gives endless (way, bytes). Nothing here uses epvi's own writer, which would refuse most of it.
"""

import copy
import hashlib
import io
import json
import pickle
import re
import zipfile

import numpy as np

UNSEALED = b"0" * 64
NASTY = [
    *(0, 1, -1, 2, 7, 16, 999, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 10**19, -(10**18), 10**400),
    *(0.5, -0.0, 1e-308, 5e-324, 1e75, 1e150, -1e308, 1e308, float("nan"), float("inf"), -float("inf")),
    *(True, False, None, "", "1/6", "1/0", "1e-999999999", "0/1", "7", "real", "simplex", "corr_cholesky", "full"),
    *("spherical", "Chain", "w", "\x00", "a\nb", "\x1b[2J", "\u202e", "\ud800", "é", "x" * 3000, "NaN", "__class__"),
    *([], {}, [[]], [None], [0], [1], [2, 2], [2**30, 0], [0, 2**15, 2**15], [2**62] * 3, [1] * 40, [[[[[[1]]]]]]),
    *({"interval": [0, 1]}, {"independent": ["positive", 1]}, {"zero_sum": [1]}, {"greater_than": [2**65]}),
    *({"interval": [{"shape": [2], "values": [0, 1]}, 3]}, {"a": 1}, {"": ""}, [""] * 50, list(range(200))),
]
TOKENS = [b"NaN", b"-Infinity", b"1e999", b"[" * 50, b"]", b"{", b"}", b",", b":", b'"', b"\\", b"\\u0000", b"0" * 400]
TOKENS += [b"null", b"true", b'"a":1,"a":2,', b"-", b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b" " * 1000, b"1" * 25]
NUMBERS = [np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-324, 1e-308, 1e-75, 1e75, 1e150, -1e150, 1e308, -1.0, 1.0, 1e-160]
# Supports as they are described, with shapes that they take, and how many coordinates those have.
SUPPORTED = [
    *(("real", [], 1), ("real", [2, 2], 4), ("positive", [3], 3), ("unit_interval", [1], 1), ("circular", [2], 2)),
    *(("simplex", [3], 2), ("simplex", [2, 3], 4), ("ordered_vector", [3], 3), ("l1_ball", [2], 2), ("real", [0], 0)),
    *(("corr_cholesky", [3, 3], 3), ("corr_matrix", [2, 2], 1), ("corr_cholesky", [1, 1], 0)),
    *(("lower_cholesky", [2, 2], 3), ("positive_definite", [2, 2], 3), ("real_vector", [3], 3)),
    *(({"interval": [0, 5]}, [2], 2), ({"greater_than": [-(10**18)]}, [], 1), ({"interval": [5, 0]}, [], 1)),
    *(({"interval": [1e308, -1e308]}, [], 1), ({"less_than": [{"shape": [2], "values": [0, 1e300]}]}, [2], 2)),
    *(({"independent": ["positive", 1]}, [2, 2], 4), ({"zero_sum": [1]}, [3], 2), ({"zero_sum": [2]}, [2, 3], 2)),
    *(({"independent": [{"independent": ["simplex", 1]}, 0]}, [2, 2], 2), ("positive_ordered_vector", [2], 2)),
    *(("softplus_positive", [2], 2), ("scaled_unit_lower_cholesky", [2, 2], 3), ("positive_semidefinite", [1, 1], 1)),
]
DTYPES = ["F32", "I64", "BF16", "U8", "BOOL", "F64 ", "f64", "", "C64", "F8_E4M3", "\n", "\x1b[2J", None, 7, ["F64"]]


class Parts:
    """A file taken apart: its record, its table of arrays, and their bytes."""

    def __init__(self, content):
        size = int.from_bytes(content[:8], "little")
        self.table = json.loads(content[8 : 8 + size])
        self.record = json.loads(self.table.pop("__metadata__")["epvi"])
        self.data = content[8 + size :]

    def arrays(self):
        return {
            name: np.frombuffer(self.data[slice(*entry["data_offsets"])]).reshape(entry["shape"])
            for name, entry in self.table.items()
        }

    def set_arrays(self, arrays):
        self.table, self.data = {}, b""
        for name, array in arrays.items():
            array = np.asarray(array, "<f8")
            offsets = [len(self.data), len(self.data) + array.nbytes]
            self.table[name] = {"dtype": "F64", "shape": list(array.shape), "data_offsets": offsets}
            self.data += array.tobytes()

    def together(self, text=None):
        """The file's bytes, well sealed, whatever is in it."""
        if isinstance(self.record, dict) and "sha256" in self.record:
            self.record["sha256"] = UNSEALED.decode()
        text = json.dumps(self.record, separators=(",", ":")) if text is None else text
        header = json.dumps({"__metadata__": {"epvi": text}, **self.table}, separators=(",", ":")).encode()
        return sealed(len(header).to_bytes(8, "little") + header + self.data)


def sealed(content):
    """The bytes with the checksum of what they are now; as they are if they have no place for one."""
    place = re.search(rb'sha256\\":\s*\\"([0-9a-f]{64})', content)
    if place is None:
        return content
    content = content[: place.start(1)] + UNSEALED + content[place.end(1) :]
    return content.replace(UNSEALED, hashlib.sha256(content).hexdigest().encode(), 1)


def places(value, found):
    """Every (container, key) within a JSON value."""
    listed = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(listed):
        found.append((value, key))
        places(inner, found)
    return found


def pick(rng, things):
    """One of them, as a copy that can be changed."""
    return copy.deepcopy(things[rng.integers(len(things))])


def change_value(rng, value):
    """Somewhere in a JSON value: another value, one fewer, one more, another name."""
    found = places(value, [])
    container, key = found[rng.integers(len(found))]
    way = rng.integers(8)
    if way < 4:
        container[key] = pick(rng, NASTY)
    elif way == 4:
        del container[key]
    elif way == 5 and isinstance(container, dict):
        container[str(pick(rng, NASTY))] = container.pop(key)
    elif way == 5 or isinstance(container, list):
        container.insert(int(rng.integers(len(container) + 1)), pick(rng, [*container, pick(rng, NASTY)]))
    elif way == 6:
        container[key] = pick(rng, [other[name] for other, name in found])
    else:
        number = container[key]
        real = isinstance(number, int | float) and not isinstance(number, bool) and abs(number) < 1e300
        container[key] = number * pick(rng, [-1, 2, 0.5, 10]) if real else [number] * int(rng.integers(4))


def record(rng, content):
    parts = Parts(content)
    for _ in range(rng.integers(1, 4)):
        change_value(rng, parts.record)
    return parts.together()


def table(rng, content):
    parts = Parts(content)
    if rng.integers(2):
        change_value(rng, parts.table)
    else:
        entry = parts.table[pick(rng, list(parts.table))]
        key = pick(rng, ["dtype", "shape", "data_offsets"])
        entry[key] = pick(rng, DTYPES) if key == "dtype" else [int(pick(rng, [0, 1, 2, 8, 2**32, 2**61, 2**63]))] * 2
        if rng.integers(2):
            entry["shape"] = pick(rng, [[0, 2**62, 2**62], [2**61], [], [1] * 9, [0, 2**40], [2**31, 2**31, 2]])
    return parts.together()


def numbers(rng, content):
    parts = Parts(content)
    arrays = {name: np.array(array) for name, array in parts.arrays().items()}
    for _ in range(rng.integers(1, 3)):
        name = pick(rng, list(arrays))
        array, way = arrays[name], rng.integers(7)
        if way < 3 and array.size:
            array.flat[rng.integers(array.size, size=rng.integers(1, 4))] = pick(rng, NUMBERS)
        elif way == 3:
            array[...] = pick(rng, NUMBERS)
        elif way == 4:
            arrays[name] = np.resize(array, pick(rng, [(0,), (), (1,), (3, 3), (2, 2, 2), (0, 6), (3, 6), (3, 21)]))
        elif way == 5:
            arrays[pick(rng, ["means", "roots", "log_weights", "0/means", "x", "\n"])] = array
        else:
            with np.errstate(over="ignore"):
                arrays[name] = array * 10.0 ** rng.integers(-200, 200)
    parts.set_arrays(arrays)
    return parts.together()


def space(rng, content):
    """Other parameters that fit, and numbers for them up to the edge of what is allowed: most of these are taken."""
    parts = Parts(content)
    chosen = [pick(rng, SUPPORTED) for _ in range(rng.integers(1, 4))]
    k, d = int(rng.integers(1, 4)), sum(size for _, _, size in chosen)
    width = {"spherical": 1, "diagonal": d, "full": d * (d + 1) // 2}
    structure = pick(rng, list(width))
    spread = pick(rng, [0.1, 1, 10, 74])
    roots = 10.0 ** rng.uniform(-spread, spread, size=(k, width[structure]))
    means = 10.0 ** rng.uniform(-spread, 2 * spread, size=(k, d)) * rng.choice([-1, 0, 1], size=(k, d))
    parts.set_arrays({"log_weights": np.log(rng.dirichlet(np.ones(k))), "means": means, "roots": roots})
    described = [{"name": f"p{i}", "shape": shape, "support": word} for i, (word, shape, _) in enumerate(chosen)]
    groups = pick(rng, [[], [], [], [["p0"]], [["p0", "p1"]], [["p0"], ["p1"]], [[]]])
    parts.record["space"] = {"parameters": described, "exchangeable": groups}
    if "fit" in parts.record:
        # All of the prior, so that it can be combined alone.
        parts.record["fit"] |= {"structure": structure, "shard": 1, "num_shards": 1, "prior": "1"}
    return parts.together()


def text(rng, content):
    """The record's text with a token in it, or with a name given twice."""
    parts = Parts(content)
    parts.record["sha256"] = UNSEALED.decode()
    written = json.dumps(parts.record)
    if rng.integers(2):
        at = rng.integers(len(written))
        token = pick(rng, TOKENS).decode(errors="surrogateescape")
        return parts.together(written[:at] + token + written[at + rng.integers(3) :])
    names = re.findall(r'"(\w+)":', written)
    old, new = pick(rng, names), pick(rng, names)
    return parts.together(re.sub(rf'"{old}":', f'"{new}":', written, count=1))


def raw(rng, content):
    """Bytes changed, cut, put in, taken out, or brought from elsewhere."""
    bad, way, at = bytearray(content), rng.integers(6), int(rng.integers(len(content)))
    if way < 2:
        for i in rng.integers(8 * len(bad), size=rng.integers(1, 9)):
            bad[i // 8] ^= 1 << (i % 8)
    elif way == 2:
        del bad[at:]
    elif way == 3:
        bad[at:at] = pick(rng, [*TOKENS, rng.bytes(rng.integers(1, 30))])
    elif way == 4:
        del bad[at : at + rng.integers(1, 40)]
    else:
        other = int(rng.integers(len(bad)))
        bad[at : at + 32] = bad[other : other + 32]
    return bytes(bad)


def raw_sealed(rng, content):
    """The same in a file that is sealed again, its header's size put right more often than not."""
    bad = raw(rng, content)
    if rng.integers(4):
        size = int.from_bytes(content[:8], "little") + len(bad) - len(content)
        bad = max(size, 0).to_bytes(8, "little") + bad[8:]
    return sealed(bad)


def noise(rng, content):
    size = int(rng.integers(0, 2000))
    return rng.bytes(size) if rng.integers(2) else int(rng.integers(size + 1)).to_bytes(8, "little") + rng.bytes(size)


def other_kinds():
    """Good files of other kinds."""
    for write in (np.save, lambda file, array: np.savez(file, means=array)):
        file = io.BytesIO()
        write(file, np.zeros((3, 6)))
        yield file.getvalue()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.epvi", b"nothing")
    yield file.getvalue()
    yield pickle.dumps({"means": np.zeros(3)})
    yield json.dumps({"format": 1, "kind": "shard"}).encode()
    yield b"PAR1" + bytes(40) + b"PAR1"
    yield b"\x89PNG\r\n\x1a\n" + bytes(100)
    yield "Grüezi\n".encode("utf-16") * 20
    header = json.dumps({"weight": {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]}}).encode()
    yield len(header).to_bytes(8, "little") + header + bytes(16)
    yield bytes(1000)


def another(rng, content):
    found = pick(rng, list(other_kinds()))
    return raw(rng, found) if rng.integers(2) else found


WAYS = {
    "record": (record, 8),
    "text": (text, 3),
    "table": (table, 2),
    "numbers": (numbers, 3),
    "space": (space, 1),
    "raw": (raw, 1),
    "raw, sealed": (raw_sealed, 4),
    "noise": (noise, 1),
    "another kind": (another, 1),
}


def inputs(good, seed):
    """Endless (way, bytes), made from good files."""
    rng = np.random.default_rng(seed)
    names = [name for name, (_, weight) in WAYS.items() for _ in range(weight)]
    while True:
        name = pick(rng, names)
        made = WAYS[name][0](rng, pick(rng, good))
        # A byte may be replaced by itself, which is no change.
        if made not in good:
            yield name, made
