"""Measurements: functions of tensors, which know nothing of training."""

from deepgat.analysis.attention import attention_divergence
from deepgat.analysis.bands import MomentBands, Moments, moment_bands
from deepgat.analysis.lemmas import ClassGaussians, LemmaCheck, check_lemma
from deepgat.analysis.metrics import Interval, confidence_interval, micro_f1, predicted_labels
from deepgat.analysis.nearest import ErrorBounds, bayes_error_bounds, nearest_neighbor_error

__all__ = [
    "ClassGaussians",
    "ErrorBounds",
    "Interval",
    "LemmaCheck",
    "MomentBands",
    "Moments",
    "attention_divergence",
    "bayes_error_bounds",
    "check_lemma",
    "confidence_interval",
    "micro_f1",
    "moment_bands",
    "nearest_neighbor_error",
    "predicted_labels",
]
