"""What the experiments share: strategies under the paper's clock, tables that go on where they stopped, one look.

Import it before NumPy and JAX: one machine of the paper is one core here, and they count cores once.
"""

import os
import sys
from pathlib import Path

# Once they are here it would only mislead the processes that a test starts.
if "jax" not in sys.modules:
    os.environ.setdefault("NPROC", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

ROOT = Path(__file__).parents[2]
# Rows like SUSY's, NUTS on a subposterior, and two-mode shards are the benchmarks' own.
sys.path.append(str(ROOT / "benchmarks"))
