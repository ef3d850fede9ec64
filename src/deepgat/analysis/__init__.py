"""Measurements: functions of tensors, which know nothing of training."""

from deepgat.analysis.metrics import Interval, confidence_interval, micro_f1, predicted_labels

__all__ = ["Interval", "confidence_interval", "micro_f1", "predicted_labels"]
