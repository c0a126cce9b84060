"""Conditional perplexity: the continuation's tokens given the prompt, both tokenised together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from evaluation.metrics.base import PromptMetric, ratio

Prompts = Iterable[tuple[Sequence[float], Sequence[int]]]
"""For each prompt the nats of its samples and their numbers of tokens."""


def _perplexities(nlls: Sequence[float], tokens: Sequence[int]) -> tuple[float, float]:
    return math.fsum(math.exp(nll / count) for nll, count in zip(nlls, tokens, strict=True)), float(len(nlls))


def _nats(nlls: Sequence[float], tokens: Sequence[int]) -> tuple[float, float]:
    return math.fsum(nlls), float(sum(tokens))


def mean_perplexity(samples: Prompts) -> float:
    """Mean over samples of each sample's perplexity, the paper's number; a few bad samples dominate it.

    >>> round(mean_perplexity([([math.log(4), 2 * math.log(2)], [1, 2])]), 6)
    3.0
    """
    return ratio(_perplexities(*prompt) for prompt in samples)


def corpus_perplexity(samples: Prompts) -> float:
    """Perplexity of all samples taken together, each token with the same weight.

    >>> round(corpus_perplexity([([math.log(4), 2 * math.log(2)], [1, 2])]), 6)
    2.519842
    """
    return math.exp(ratio(_nats(*prompt) for prompt in samples))


class MeanPerplexity(PromptMetric):
    """See `mean_perplexity`."""

    name = "mean_perplexity"

    def totals(self, nlls: Sequence[float], tokens: Sequence[int]) -> Sequence[float]:
        return _perplexities(nlls, tokens)

    def facts(self) -> dict[str, object]:
        return {"tokens": "continuation", "given": "prompt", "tokenised": "together"}


class CorpusPerplexity(PromptMetric):
    """See `corpus_perplexity`."""

    name = "corpus_perplexity"

    def totals(self, nlls: Sequence[float], tokens: Sequence[int]) -> Sequence[float]:
        return _nats(nlls, tokens)

    def value(self, totals: Tensor) -> Tensor:
        return torch.exp(totals[..., 0] / totals[..., 1])

    def facts(self) -> dict[str, object]:
        return {"tokens": "continuation", "given": "prompt", "tokenised": "together"}
