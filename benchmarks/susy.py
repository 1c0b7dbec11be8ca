"""Simulated rows that resemble the SUSY data: its 18 columns' means, scales and correlations, and a logistic model.

The constants are estimates from 10,000 rows of the SUSY data (UCI Machine Learning Repository, CC BY 4.0; P. Baldi, P.
Sadowski and D. Whiteson, Searching for exotic particles in high-energy physics with deep learning, Nature
Communications 5, 2014). The simulated columns are jointly normal, unlike the real ones. So the cost of a logistic
regression and the correlations of its coefficients are realistic, but not how well it predicts.
"""

import numpy as np

Rows = dict[str, np.ndarray]

# For each column: mean, standard deviation, and the coefficient of the standardised column in a logistic regression
# with an intercept. The intercept is left out below, so that both labels are equally frequent.
COLUMNS = {
    "lepton1_pT": (1.026, 0.7199, 1.9684),
    "lepton1_eta": (0.01339, 1.002, 0.0377),
    "lepton1_phi": (0.01407, 0.995, 0.0032),
    "lepton2_pT": (1.009, 0.6706, 0.1637),
    "lepton2_eta": (0.004459, 0.9964, 0.0012),
    "lepton2_phi": (-0.004699, 1.008, -0.0544),
    "met": (1.039, 0.9156, 3.9850),
    "met_phi": (0.0005568, 1.005, 0.0082),
    "MET_rel": (1.030, 0.9228, -0.4487),
    "axial_MET": (0.005008, 1.071, 0.3621),
    "M_R": (1.014, 0.6305, 0.0430),
    "M_TR_2": (1.025, 0.6141, -0.9393),
    "R": (1.007, 0.474, -0.7709),
    "MT2": (1.019, 0.8724, 0.0231),
    "S_R": (1.013, 0.6227, -1.2381),
    "M_Delta_R": (1.020, 0.6344, 0.5189),
    "dPhi_r_b": (1.001, 0.4333, -0.1854),
    "cos_theta_r1": (0.2287, 0.201, 0.1750),
}
MEANS, SCALES, COEFFICIENTS = np.array(list(COLUMNS.values())).T

# Correlations below the diagonal, row by row.
_BELOW = """
-0.0206
0.0087 -0.0098
0.6795 -0.0119 0.0114
-0.0046 0.4050 -0.0137 0.0004
-0.0228 0.0032 -0.2645 -0.0088 0.0005
0.4065 -0.0082 0.0159 0.1393 0.0006 -0.0190
-0.0038 -0.0055 -0.1744 -0.0030 -0.0005 -0.0384 0.0059
0.1802 0.0028 0.0050 -0.0032 0.0110 -0.0048 0.7062 -0.0028
-0.0180 -0.0095 0.0010 0.0700 -0.0047 0.0040 0.1862 0.0141 -0.1320
0.8649 -0.0219 0.0014 0.8013 -0.0010 -0.0169 0.2933 0.0008 0.0940 0.0265
0.7383 -0.0079 0.0100 0.4299 0.0009 -0.0196 0.7086 -0.0020 0.5808 -0.3301 0.6038
-0.1755 0.0176 0.0198 -0.3176 0.0037 -0.0023 0.4368 -0.0042 0.5954 -0.3893 -0.3747 0.3700
-0.0293 0.0119 0.0091 -0.1255 0.0040 0.0014 0.1853 -0.0028 0.5232 -0.5342 -0.0745 0.3643 0.5728
0.8259 -0.0209 0.0041 0.8032 -0.0002 -0.0172 0.3333 0.0008 0.1660 -0.0750 0.9804 0.6642 -0.2734 -0.0224
0.2370 0.0010 0.0051 0.0136 0.0001 -0.0083 0.5709 -0.0040 0.7491 -0.3708 0.1996 0.6605 0.5604 0.8023 0.2624
-0.1600 -0.0015 0.0035 -0.0296 0.0039 -0.0058 0.3798 -0.0065 0.3746 -0.0460 -0.1125 0.2132 0.4166 0.0523 -0.0187 0.1604
0.1717 0.0029 0.0126 -0.2112 -0.0013 -0.0108 0.4241 -0.0054 0.3355 -0.2805 -0.1028 0.4524 0.6383 0.2725 -0.0678 0.3286
0.1076
"""

_BLOCK = 2**17


def correlations() -> np.ndarray:
    """The matrix (18, 18)."""
    matrix = np.eye(len(COLUMNS))
    below = np.tril_indices(len(COLUMNS), -1)
    matrix[below] = [float(word) for word in _BELOW.split()]
    return matrix + np.tril(matrix, -1).T


def susy_like(num_rows: int, seed: int, *, standardised: bool = True) -> Rows:
    """Columns x (n, 18) in float32, standardised by the constants or in their own units, and labels y (n,) in int8.

    There is no column of ones: both labels are equally frequent. Rows are drawn in blocks with one seed each, so that a
    longer table begins with the rows of a shorter one.
    """
    x, y = np.empty((num_rows, len(COLUMNS)), np.float32), np.empty(num_rows, np.int8)
    root = np.linalg.cholesky(correlations()).T.astype(np.float32)
    w = COEFFICIENTS.astype(np.float32)
    for start in range(0, num_rows, _BLOCK):
        rng = np.random.default_rng([seed, start // _BLOCK])
        part = slice(start, min(start + _BLOCK, num_rows))
        size = part.stop - start
        drawn = rng.standard_normal((_BLOCK, len(w)), np.float32) @ root
        y[part] = (rng.random(_BLOCK, np.float32) < 1 / (1 + np.exp(-(drawn @ w))))[:size]
        x[part] = drawn[:size]
        if not standardised:
            x[part] = x[part] * SCALES + MEANS
    return {"x": x, "y": y}


def held_out(rows: Rows) -> tuple[Rows, Rows]:
    """Rows to fit, and the last tenth, held out; rows are i.i.d., so any tenth will do."""
    cut = len(rows["y"]) - len(rows["y"]) // 10
    return {n: c[:cut] for n, c in rows.items()}, {n: c[cut:] for n, c in rows.items()}
