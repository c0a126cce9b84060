"""How far a scorer can be trusted: its agreement with labels or with another scorer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def accuracy(truth: Sequence[int], predicted: Sequence[bool]) -> float:
    """Share of right answers.

    >>> accuracy([1, 0], [True, True])
    0.5
    """
    return sum(int(a == b) for a, b in zip(truth, predicted, strict=True)) / len(truth)


def matthews(truth: Sequence[int], predicted: Sequence[bool]) -> float:
    """Matthews correlation: 0 for guessing however uneven the classes are, 1 for perfection.

    >>> matthews([1, 1, 0, 0], [True, True, False, False])
    1.0
    """
    return _correlation(torch.tensor(truth, dtype=torch.float64), torch.tensor(predicted, dtype=torch.float64))


def auc(truth: Sequence[int], scores: Sequence[float]) -> float:
    """Chance that a random positive example scores above a random negative one.

    >>> auc([0, 1, 0, 1], [0.1, 0.4, 0.35, 0.8])
    1.0
    """
    labels = torch.tensor(truth, dtype=torch.float64)
    positive = float(labels.sum())
    rank_sum = float((_ranks(scores) * labels).sum())
    return (rank_sum - positive * (positive + 1) / 2) / (positive * (len(truth) - positive))


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's correlation, ties sharing their mean rank.

    >>> rank_correlation([1, 2, 3], [10, 100, 1000])
    1.0
    """
    return _correlation(_ranks(first), _ranks(second))


def _correlation(first: Tensor, second: Tensor) -> float:
    first, second = first - first.mean(), second - second.mean()
    size = float(first.norm() * second.norm())
    return round(float(first @ second) / size, 12) if size else 0.0


def _ranks(values: Sequence[float]) -> Tensor:
    _, group, counts = torch.tensor(values, dtype=torch.float64).unique(return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    return (last - (counts - 1) / 2)[group]
