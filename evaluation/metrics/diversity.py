"""How varied the samples of a prompt are. Words are what stands between white space."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from evaluation.metrics.base import PromptMetric, ratio

Prompts = Iterable[Sequence[str]]
"""For each prompt the texts of its samples."""
Numbers = NDArray[np.int64]


def ngrams(words: Sequence[str], n: int) -> Iterable[tuple[str, ...]]:
    """All runs of ``n`` words."""
    return zip(*(words[start:] for start in range(n)), strict=False)


def _distinct(texts: Sequence[str], n: int) -> tuple[float, float]:
    found: set[tuple[str, ...]] = set()
    words = 0
    for text in texts:
        split = text.split()
        words += len(split)
        found.update(ngrams(split, n))
    return (len(found) / words if words else 0.0), 1.0


def ends_in_repetition(text: str) -> bool:
    """Whether a phrase of three words or more stands twice in a row at the end of the text.

    >>> ends_in_repetition("and then I said it is so it is so")
    True
    >>> ends_in_repetition("it is so it is so fine")
    False
    """
    words = text.split()
    return any(words[-n:] == words[-2 * n : -n] for n in range(3, len(words) // 2 + 1))


def _repeating(texts: Sequence[str]) -> tuple[float, float]:
    return float(sum(map(ends_in_repetition, texts))), float(len(texts))


def _self_bleu(texts: Sequence[str], order: int = 4) -> tuple[float, float]:
    """BLEU of each sample against all the others, summed, and the number of samples."""
    if len(texts) < 2:
        raise ValueError("Self-BLEU compares the samples of a prompt: it needs two or more.")
    split = [text.split() for text in texts]
    lengths = [len(words) for words in split]
    correct = [_matched(grams, samples, len(texts)) for grams, samples in _numbered(split, order)]
    total = 0.0
    for index, matches in enumerate(zip(*correct, strict=True)):
        total += _sentence_bleu(matches, lengths[index], lengths[:index] + lengths[index + 1 :])
    return total, float(len(texts))


def _numbered(split: Sequence[Sequence[str]], order: int) -> Iterator[tuple[Numbers, Numbers]]:
    """For each order all n-grams as numbers, equal where the n-grams are, and the sample that each stands in."""
    vocabulary: dict[str, int] = {}
    words = np.array([vocabulary.setdefault(word, len(vocabulary)) for sample in split for word in sample], np.int64)
    samples = np.append(np.repeat(np.arange(len(split)), [len(sample) for sample in split]), -1)
    starts, grams = np.arange(len(words)), words
    for n in range(1, order + 1):
        yield grams, samples[starts]
        longer = samples[starts + n] == samples[starts]
        starts, grams = starts[longer], grams[longer]
        grams = np.unique(grams * len(vocabulary) + words[starts + n], return_inverse=True)[1]


def _matched(grams: Numbers, samples: Numbers, count: int) -> list[int]:
    """How many n-grams of each sample also stand in another one, each counted at most as often as there."""
    pairs, times = np.unique(grams * count + samples, return_counts=True)
    grams, samples = np.divmod(pairs, count)
    order = np.lexsort((times, grams))
    grams, samples, times = grams[order], samples[order], times[order]
    first, last = np.diff(grams, prepend=-1) != 0, np.diff(grams, append=-1) != 0
    most = times[last][np.cumsum(first) - 1]
    second = np.where(first, 0, np.roll(times, 1))  # the sample with the most has the one before it as its rival
    clipped = np.minimum(times, np.where(last, second, most))
    return np.bincount(samples, clipped, count).astype(int).tolist()


def _sentence_bleu(correct: Sequence[int], length: int, references: Sequence[int]) -> float:
    """BLEU of one sentence from its clipped n-gram matches, exponentially smoothed, effective order, 0 to 1."""
    precisions, smooth = [], 1.0
    for n, matched in enumerate(correct, 1):
        possible = max(length - n + 1, 0)
        if not possible:
            break
        if matched:
            precisions.append(matched / possible)
        else:
            smooth *= 2
            precisions.append(1 / (smooth * possible))
    if not precisions or not any(correct):
        return 0.0
    closest = min(references, key=lambda reference: (abs(reference - length), reference))
    brevity = 1.0 if length >= closest else math.exp(1 - closest / length)
    return brevity * math.exp(math.fsum(map(math.log, precisions)) / len(precisions))


def distinct(texts: Prompts, n: int) -> float:
    """dist-n: distinct n-grams over all samples of a prompt, divided by their words; mean over prompts.

    >>> distinct([["a b a", "a b c"]], 1)
    0.5
    """
    return ratio(_distinct(samples, n) for samples in texts)


def repetition_rate(texts: Prompts) -> float:
    """Share of samples for which `ends_in_repetition` holds.

    >>> repetition_rate([["no no no no no no", "yes"]])
    0.5
    """
    return ratio(map(_repeating, texts))


def self_bleu(texts: Prompts) -> float:
    """Mean BLEU of each sample against the other samples of its prompt, 0 to 1; lower is more varied.

    >>> self_bleu([["a b c d e", "a b c d e", "v w x y z"]])
    0.6666666666666666
    """
    return ratio(map(_self_bleu, texts))


class Distinct(PromptMetric):
    """See `distinct`."""

    name = "dist"
    higher_is_better = True

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def totals(self, texts: Sequence[str]) -> Sequence[float]:
        return _distinct(texts, self.n)

    def facts(self) -> dict[str, object]:
        return {"n": self.n, "words": "whitespace"}


class RepetitionRate(PromptMetric):
    """See `repetition_rate`."""

    name = "repetition_rate"
    higher_is_better = False

    def totals(self, texts: Sequence[str]) -> Sequence[float]:
        return _repeating(texts)

    def facts(self) -> dict[str, object]:
        return {"phrase": ">=3 words, at the end", "words": "whitespace"}


class SelfBLEU(PromptMetric):
    """See `self_bleu`."""

    name = "self_bleu"
    higher_is_better = False

    def totals(self, texts: Sequence[str]) -> Sequence[float]:
        return _self_bleu(texts)

    def facts(self) -> dict[str, object]:
        return {"order": 4, "smooth": "exp", "words": "whitespace"}
