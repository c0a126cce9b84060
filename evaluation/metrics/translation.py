"""BLEU, as sacreBLEU computes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import sacrebleu
import torch
from sacrebleu.metrics import BLEU as SacreBLEU
from torch import Tensor

from evaluation.metrics.base import PromptMetric
from evaluation.metrics.diversity import ngrams

_SCORER = SacreBLEU()
_ORDER = _SCORER.max_ngram_order


def bleu(samples: Iterable[tuple[Sequence[str], Sequence[str]]]) -> float:
    """Corpus BLEU (0 to 100) of the samples of all prompts against the reference of each.

    >>> round(bleu([(["the cat sat on the mat"], ["the cat sat on the mat"])]), 6)
    100.0
    """
    texts: list[str] = []
    references: list[str] = []
    for prompt_texts, prompt_references in samples:
        texts += prompt_texts
        references += prompt_references
    return _SCORER.corpus_score(texts, [references]).score


class BLEU(PromptMetric):
    """See `bleu`. A prompt's row holds sacreBLEU's counts, so the sum of rows is the corpus."""

    name = "bleu"
    width = 2 * _ORDER + 2
    higher_is_better = True

    def totals(self, texts: Sequence[str], references: Sequence[str]) -> Sequence[float]:
        wanted = {reference: _words(reference) for reference in set(references)}
        counted = {reference: Counter(_all_ngrams(words)) for reference, words in wanted.items()}
        correct, possible, lengths = [0] * _ORDER, [0] * _ORDER, [0, 0]
        for text, reference in zip(texts, references, strict=True):
            words, there = _words(text), counted[reference]
            for ngram, count in Counter(ngram for ngram in _all_ngrams(words) if ngram in there).items():
                correct[len(ngram) - 1] += min(count, there[ngram])
            for n in range(_ORDER):
                possible[n] += max(len(words) - n, 0)
            lengths[0] += len(words)
            lengths[1] += len(wanted[reference])
        return [*correct, *possible, *lengths]

    def value(self, totals: Tensor) -> Tensor:
        scores = [_score([int(entry) for entry in row]) for row in totals.reshape(-1, self.width).tolist()]
        return torch.tensor(scores, dtype=torch.float64).view(totals.shape[:-1])

    def facts(self) -> dict[str, object]:
        return {"refs": 1, "case": "mixed", "tok": "13a", "smooth": "exp", "sacrebleu": sacrebleu.__version__}


def _words(text: str) -> list[str]:
    return _SCORER.tokenizer(text.rstrip()).split()


def _all_ngrams(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return chain.from_iterable(ngrams(words, n) for n in range(1, _ORDER + 1))


def _score(row: list[int]) -> float:
    counts, totals = row[:_ORDER], row[_ORDER : 2 * _ORDER]
    return SacreBLEU.compute_bleu(counts, totals, row[-2], row[-1], smooth_method=_SCORER.smooth_method).score
