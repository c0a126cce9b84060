"""How varied the samples of a prompt are. Words are what stands between white space."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from evaluation.metrics.base import PromptMetric, ratio

Prompts = Iterable[Sequence[str]]
"""For each prompt the texts of its samples."""


def _ngrams(words: Sequence[str], n: int) -> Iterable[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(n)), strict=False)


def _distinct(texts: Sequence[str], n: int) -> tuple[float, float]:
    found: set[tuple[str, ...]] = set()
    words = 0
    for text in texts:
        split = text.split()
        words += len(split)
        found.update(_ngrams(split, n))
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
    """BLEU of each sample against all the others, summed, and the number of samples.

    An n-gram's clip is the largest count in any *other* sample. Most n-grams stand once in a sample, and
    then all that matters is whether another one has them; only those that are repeated are looked at closely.
    """
    if len(texts) < 2:
        raise ValueError("Self-BLEU compares the samples of a prompt: it needs two or more.")
    split = [text.split() for text in texts]
    counts = [[Counter(_ngrams(words, n)) for n in range(1, order + 1)] for words in split]
    holders: Counter[tuple[str, ...]] = Counter()
    """How many samples have an n-gram."""
    repeated: dict[tuple[str, ...], list[int]] = defaultdict(list)
    """Its counts in the samples that have it more than once."""
    for sample in counts:
        for counter in sample:
            holders.update(counter.keys())
            if len(counter) < counter.total():
                for ngram, count in counter.items():
                    if count > 1:
                        repeated[ngram].append(count)
    lengths = [len(words) for words in split]
    total = 0.0
    for index, sample in enumerate(counts):
        correct = []
        for counter in sample:
            shared = [ngram for ngram in counter if holders[ngram] > 1]
            extra = (_clipped(counter[ngram], repeated[ngram]) - 1 for ngram in shared if counter[ngram] > 1)
            correct.append(len(shared) + (sum(extra) if len(counter) < counter.total() else 0))
        total += _sentence_bleu(correct, lengths[index], lengths[:index] + lengths[index + 1 :])
    return total, float(len(texts))


def _clipped(count: int, repeated: Sequence[int]) -> int:
    """``count``, at most the largest count of another sample; ``repeated`` has those above 1, its own too."""
    others = sorted(repeated)
    others.remove(count)
    return min(count, others[-1] if others else 1)


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
