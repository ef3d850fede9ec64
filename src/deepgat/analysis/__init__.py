"""Measurements: functions of tensors, which know nothing of training."""

from deepgat.analysis.attention import attention_divergence
from deepgat.analysis.metrics import Interval, confidence_interval, micro_f1, predicted_labels
from deepgat.analysis.nearest import ErrorBounds, bayes_error_bounds, nearest_neighbor_error

__all__ = [
    "ErrorBounds",
    "Interval",
    "attention_divergence",
    "bayes_error_bounds",
    "confidence_interval",
    "micro_f1",
    "nearest_neighbor_error",
    "predicted_labels",
]
