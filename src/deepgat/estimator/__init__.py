"""DeepGAT as scikit-learn knows estimators: fit, predict, score, clone, grid search."""

from deepgat.estimator.classifier import DeepGATClassifier

__all__ = ["DeepGATClassifier"]
