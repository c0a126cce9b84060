"""What it took to make the samples, from what the run itself recorded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from evaluation.metrics.base import PromptMetric, ratio

FALLBACK = "fallback"


def _sum(numbers: Sequence[float]) -> tuple[float, float]:
    return math.fsum(numbers), float(len(numbers))


def _fallbacks(sources: Sequence[str]) -> tuple[float, float]:
    return float(sum(source == FALLBACK for source in sources)), float(len(sources))


def sample_mean(numbers: Iterable[Sequence[float]]) -> float:
    """Mean over samples of a recorded number or, as a share, of a recorded yes or no.

    >>> sample_mean([[True, False], [True, True]])
    0.75
    """
    return ratio(map(_sum, numbers))


def fallback_rate(sources: Iterable[Sequence[str]]) -> float:
    """Share of samples for which the sampler gave up and returned an unconstrained one.

    >>> fallback_rate([["langevin", "fallback"], ["ancestral", "langevin"]])
    0.25
    """
    return ratio(map(_fallbacks, sources))


class SampleMean(PromptMetric):
    """See `sample_mean`; ``of`` says what is averaged: ``steps``, ``seconds``, ``satisfied``, ..."""

    def __init__(self, of: str) -> None:
        super().__init__()
        self.name = of

    def totals(self, numbers: Sequence[float]) -> Sequence[float]:
        return _sum(numbers)


class FallbackRate(PromptMetric):
    """See `fallback_rate`."""

    name = "fallback_rate"
    higher_is_better = False

    def totals(self, sources: Sequence[str]) -> Sequence[float]:
        return _fallbacks(sources)
