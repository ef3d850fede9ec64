"""Measurements: functions of tensors, independent of training."""

from deepgat.analysis.attention import (
    AttentionDrift,
    AttentionMass,
    attention_divergence,
    attention_drift,
    attention_mass,
    divergence_bound,
    divergence_bounds,
    uniform_attention,
)
from deepgat.analysis.calibration import Reliability, fit_temperature, reliability
from deepgat.analysis.early_exit import ExitPolicy, choose_exits
from deepgat.analysis.leakage import LeakageReport, check_leakage
from deepgat.analysis.metrics import (
    Degradation,
    Interval,
    confidence_interval,
    degradation,
    f1_counts,
    micro_f1,
    paired_p_value,
    predicted_labels,
)
from deepgat.analysis.nearest import ErrorBounds, bayes_error_bounds, nearest_neighbor_error
from deepgat.analysis.profile import LayerMeasures, over_smoothing_profile
from deepgat.analysis.smoothing import (
    DistanceGap,
    dirichlet_energy,
    distance_gap,
    effective_rank,
    global_distance,
    neighbor_distance,
    numerical_rank,
    rayleigh_quotient,
)
from deepgat.analysis.tracing import LeakPath, ModelInputs

__all__ = [
    "AttentionDrift",
    "AttentionMass",
    "Degradation",
    "DistanceGap",
    "ErrorBounds",
    "ExitPolicy",
    "Interval",
    "LayerMeasures",
    "LeakPath",
    "LeakageReport",
    "ModelInputs",
    "Reliability",
    "attention_divergence",
    "attention_drift",
    "attention_mass",
    "bayes_error_bounds",
    "check_leakage",
    "choose_exits",
    "confidence_interval",
    "degradation",
    "dirichlet_energy",
    "distance_gap",
    "divergence_bound",
    "divergence_bounds",
    "effective_rank",
    "f1_counts",
    "fit_temperature",
    "global_distance",
    "micro_f1",
    "nearest_neighbor_error",
    "neighbor_distance",
    "numerical_rank",
    "over_smoothing_profile",
    "paired_p_value",
    "predicted_labels",
    "rayleigh_quotient",
    "reliability",
    "uniform_attention",
]
