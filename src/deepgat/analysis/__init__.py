"""Measurements: functions of tensors, independent of training."""

from deepgat.analysis.attention import (
    attention_divergence,
    attention_mass,
    divergence_bound,
    uniform_attention,
)
from deepgat.analysis.calibration import (
    Calibration,
    Reliability,
    choose_temperature,
    fit_temperature,
    reliability,
)
from deepgat.analysis.conformal import conformal_quantile, set_coverage
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
from deepgat.analysis.selective import risk_coverage
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
    "Calibration",
    "ExitPolicy",
    "LayerMeasures",
    "LeakageReport",
    "Reliability",
    "attention_divergence",
    "attention_mass",
    "bayes_error_bounds",
    "check_leakage",
    "choose_exits",
    "choose_temperature",
    "confidence_interval",
    "conformal_quantile",
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
    "risk_coverage",
    "score",
    "set_coverage",
    "uniform_attention",
]
