"""BLEU, as sacreBLEU computes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sacrebleu
import torch
from sacrebleu.metrics import BLEU as SacreBLEU
from torch import Tensor

from evaluation.metrics.base import PromptMetric

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
    """See `bleu`. A prompt's row holds sacreBLEU's own counts, so the sum of rows is the corpus."""

    name = "bleu"
    width = 2 * _ORDER + 2
    higher_is_better = True

    def totals(self, texts: Sequence[str], references: Sequence[str]) -> Sequence[float]:
        score = _SCORER.corpus_score(list(texts), [list(references)])
        return [*score.counts, *score.totals, score.sys_len, score.ref_len]

    def value(self, totals: Tensor) -> Tensor:
        row = [int(entry) for entry in totals.tolist()]
        score = SacreBLEU.compute_bleu(
            row[:_ORDER], row[_ORDER : 2 * _ORDER], row[-2], row[-1], smooth_method=_SCORER.smooth_method
        )
        return torch.tensor(score.score, dtype=torch.float64)

    def facts(self) -> dict[str, object]:
        return {"refs": 1, "case": "mixed", "tok": "13a", "smooth": "exp", "sacrebleu": sacrebleu.__version__}
