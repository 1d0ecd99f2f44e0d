"""What the paper states, as functions: privacy (Theorems 1-3), convergence (Theorem 4), cost.

Every theorem raises `OutsideConditions` where its conditions do not hold, unless it is asked to
compute and say so (`outside_conditions="stamp"`). Nothing here grants a privacy guarantee.
"""

from dpfedc.research.theory.complexity import (
    all_clients_operations,
    centroid_step_operations,
    client_operations,
    federated_kmeans_clients_operations,
    federated_kmeans_server_operations,
    membership_step_operations,
    server_operations,
    uploaded_floats,
)
from dpfedc.research.theory.convergence import (
    ConvergenceBound,
    MeasuredConstants,
    convergence_bound,
    gradient_bound,
    gradient_variance,
    heterogeneity,
    least_alpha_2,
    measured_constants,
)
from dpfedc.research.theory.theorems import (
    AmplifiedPrivacy,
    Stated,
    amplified,
    centroid_steps,
    data_sampling_ratio,
    noise_variance,
    per_round_epsilon,
    safe_batch_size,
    sensitivity,
    total_loss,
)

__all__ = [
    "AmplifiedPrivacy",
    "ConvergenceBound",
    "MeasuredConstants",
    "Stated",
    "all_clients_operations",
    "amplified",
    "centroid_step_operations",
    "centroid_steps",
    "client_operations",
    "convergence_bound",
    "data_sampling_ratio",
    "federated_kmeans_clients_operations",
    "federated_kmeans_server_operations",
    "gradient_bound",
    "gradient_variance",
    "heterogeneity",
    "least_alpha_2",
    "measured_constants",
    "membership_step_operations",
    "noise_variance",
    "per_round_epsilon",
    "safe_batch_size",
    "sensitivity",
    "server_operations",
    "total_loss",
    "uploaded_floats",
]
