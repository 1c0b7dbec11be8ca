"""Shared parts of the experiments: strategies and the paper's clock, resumable tables, the style of figures.

Import it before NumPy and JAX: it limits both to one core (one machine of the paper), which they read at import.
"""

import os
import sys
from pathlib import Path

# After JAX has been imported, setting these would only affect processes started later (by tests).
if "jax" not in sys.modules:
    os.environ.setdefault("NPROC", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

ROOT = Path(__file__).parents[2]
# The experiments use modules of benchmarks/: SUSY-like rows, NUTS on subposteriors, two-mode shards.
sys.path.append(str(ROOT / "benchmarks"))
