"""Start-up time: import, worker processes and compilation.

Prints medians over fresh interpreters; the time for `epvi` is what its import adds to that of NumPyro.
"""

import subprocess
import sys

import numpy as np

IMPORTS = """
import time
start = time.perf_counter(); import numpyro
middle = time.perf_counter(); import epvi; epvi.fit, epvi.combine
print(middle - start, time.perf_counter() - middle)
"""

CALLS = """
import time, epvi
from epvi.models import logistic, simulate_logistic
rows, _ = simulate_logistic(20_000, 8, condition=80, seed=0)
for _ in range(2):
    start = time.perf_counter()
    posterior = epvi.fit(logistic, rows, 8)
    print(time.perf_counter() - start)
slowest, quickest = (f(fit.seconds for fit in posterior.fits) for f in (max, min))
print(slowest, quickest, max(fit.passes for fit in posterior.fits))
"""


def numbers(code: str) -> list[float]:
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    return [float(word) for word in printed.split()]


def main() -> None:
    imports = np.median([numbers(IMPORTS) for _ in range(5)], axis=0)
    calls = np.median([numbers(CALLS) for _ in range(3)], axis=0)
    print(f"import numpyro {imports[0]:.2f} s, epvi {imports[1]:.2f} s more (target: under 1.5)")
    print(f"fit of 20,000 rows, 8 shards: first call {calls[0]:.1f} s, second {calls[1]:.2f} s")
    print(f"a shard of the second: {calls[3]:.2f} to {calls[2]:.2f} s, at most {calls[4]:.0f} passes over its rows")


if __name__ == "__main__":
    main()
