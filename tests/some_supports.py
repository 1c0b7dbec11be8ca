"""One parameter of every support that epvi knows."""

import numpy as np
from numpyro.distributions import constraints

BOUNDS = np.array([0.0, -1.0]), np.array([2.0, 5.0])
# Shape of the value, its support, and how many coordinates of θ it takes.
SUPPORTS = {
    "real": ((2,), constraints.real, 2),
    "scalar": ((), constraints.real, 1),
    "real_vector": ((3,), constraints.real_vector, 3),
    "real_matrix": ((2, 3), constraints.real_matrix, 6),
    "positive": ((2, 2), constraints.positive, 4),
    "nonnegative": ((), constraints.nonnegative, 1),
    "softplus_positive": ((2,), constraints.softplus_positive, 2),
    "interval": ((2,), constraints.interval(-1.0, 3.0), 2),
    "interval of arrays": ((2,), constraints.interval(*BOUNDS), 2),
    "interval of whole numbers": ((3, 2), constraints.interval(0, 5), 6),
    "open_interval": ((), constraints.open_interval(-2.0, 2.0), 1),
    "unit_interval": ((2,), constraints.unit_interval, 2),
    "circular": ((2,), constraints.circular, 2),
    "greater_than": ((2,), constraints.greater_than(2.0), 2),
    "greater_than of an array": ((2,), constraints.greater_than(BOUNDS[1]), 2),
    "greater_than_eq": ((), constraints.greater_than_eq(-1.0), 1),
    "less_than": ((2,), constraints.less_than(-2.0), 2),
    "less_than_eq": ((), constraints.less_than_eq(1.0), 1),
    "simplex": ((4,), constraints.simplex, 3),
    "simplices": ((2, 3), constraints.simplex, 4),
    "ordered_vector": ((3,), constraints.ordered_vector, 3),
    "positive_ordered_vector": ((3,), constraints.positive_ordered_vector, 3),
    "corr_cholesky": ((3, 3), constraints.corr_cholesky, 3),
    "corr_matrix": ((3, 3), constraints.corr_matrix, 3),
    "lower_cholesky": ((3, 3), constraints.lower_cholesky, 6),
    "softplus_lower_cholesky": ((2, 2), constraints.softplus_lower_cholesky, 3),
    "scaled_unit_lower_cholesky": ((2, 2), constraints.scaled_unit_lower_cholesky, 3),
    "positive_definite": ((3, 3), constraints.positive_definite, 6),
    "positive_semidefinite": ((2, 2), constraints.positive_semidefinite, 3),
    "l1_ball": ((3,), constraints.l1_ball, 3),
    "zero_sum": ((4,), constraints.zero_sum(1), 3),
    "zero_sum both ways": ((2, 3), constraints.zero_sum(2), 2),
    "independent": ((2, 3), constraints.independent(constraints.positive, 1), 6),
    "independent interval": ((2,), constraints.independent(constraints.interval(*BOUNDS), 1), 2),
}
