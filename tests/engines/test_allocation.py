"""Freed blocks of memory are kept while there are rows, where they would be returned at once."""

import os
import subprocess
import sys

import pytest

_CODE = """
import resource, sys
import numpy as np
from epvi.engines.allocation import kept_blocks

class Rows:
    pass

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        np.ones(500_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

rows, counts = Rows(), [faults()]
with kept_blocks() as keep_for:
    keep_for(rows)
    faults()
    counts.append(faults())
counts.append(faults())
del rows
counts.append(faults())
print(*counts)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc is Linux's")
def test_blocks_are_kept_as_long_as_there_are_rows():
    environment = {**os.environ, "MALLOC_TRIM_THRESHOLD_": "65536"}
    said = subprocess.check_output([sys.executable, "-c", _CODE], env=environment, text=True)
    at_first, inside, held, afterwards = map(int, said.split())
    # Without, each of 50 arrays of 4 MB takes a thousand pages anew.
    assert at_first > 20_000 < afterwards
    assert inside < 2_000 > held


def test_where_nothing_is_returned_at_once_nothing_is_done():
    environment = {name: value for name, value in os.environ.items() if name != "MALLOC_TRIM_THRESHOLD_"}
    code = "from epvi.engines import allocation as a\nwith a.kept_blocks() as keep: keep(3)\nprint(a._num_held)"
    assert subprocess.check_output([sys.executable, "-c", code], env=environment, text=True).strip() == "0"
