"""Measurements: functions of tensors, independent of training."""

from deepgat.analysis.attention import (
    attention_divergence,
    attention_mass,
    divergence_bound,
    uniform_attention,
)
from deepgat.analysis.calibration import Reliability, fit_temperature, reliability
from deepgat.analysis.early_exit import ExitPolicy, choose_exits
from deepgat.analysis.leakage import LeakageReport, check_leakage
from deepgat.analysis.metrics import (
    METRICS,
    bayes_error_bounds,
    confidence_interval,
    f1_counts,
    metric,
    micro_f1,
    nearest_neighbor_error,
    paired_p_value,
    predicted_labels,
    score,
)
from deepgat.analysis.smoothing import (
    LayerMeasures,
    dirichlet_energy,
    effective_rank,
    global_distance,
    neighbor_distance,
    numerical_rank,
    over_smoothing_profile,
    rayleigh_quotient,
)

__all__ = [
    "METRICS",
    "ExitPolicy",
    "LayerMeasures",
    "LeakageReport",
    "Reliability",
    "attention_divergence",
    "attention_mass",
    "bayes_error_bounds",
    "check_leakage",
    "choose_exits",
    "confidence_interval",
    "dirichlet_energy",
    "divergence_bound",
    "effective_rank",
    "f1_counts",
    "fit_temperature",
    "global_distance",
    "metric",
    "micro_f1",
    "nearest_neighbor_error",
    "neighbor_distance",
    "numerical_rank",
    "over_smoothing_profile",
    "paired_p_value",
    "predicted_labels",
    "rayleigh_quotient",
    "reliability",
    "score",
    "uniform_attention",
]
