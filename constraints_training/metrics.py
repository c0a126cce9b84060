"""What is measured on development and test texts, by torchmetrics."""

from __future__ import annotations

from torch import nn
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassCalibrationError
from torchmetrics.wrappers import ClasswiseWrapper


def classification(labels: list[str], prefix: str) -> MetricCollection:
    """Accuracy (of all texts, and of each class), AUROC and expected calibration error.

    Takes probabilities (texts, classes) and class numbers (texts).
    """
    classes = len(labels)
    per_class = MulticlassAccuracy(classes, average=None)
    metrics: dict[str, nn.Module] = {
        "accuracy": MulticlassAccuracy(classes, average="micro"),
        "auroc": MulticlassAUROC(classes),
        "calibration_error": MulticlassCalibrationError(classes, n_bins=15, norm="l1"),
        "per_class": ClasswiseWrapper(per_class, labels=labels, prefix="accuracy_"),
    }
    return MetricCollection(metrics, prefix=prefix)  # type: ignore[arg-type]
