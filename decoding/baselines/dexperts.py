"""DExperts: an expert and an anti-expert move the logits (Liu et al. 2021, arXiv 2105.03023)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, TopPLogitsWarper

from decoding.baselines.attribute import load_adapted
from decoding.baselines.left_to_right import LeftToRight, Rows, Steer
from decoding.baselines.reading import Reader
from mucola.language_model import LanguageModel
from mucola.pool import Request


class DExpertsProcessor(LogitsProcessor):
    """``z + alpha (z+ - z-)`` over the nucleus of the base model's logits ``z``, for ``generate()`` of any causal LM.

    ``expert`` and ``anti_expert`` are causal LMs of transformers with the same vocabulary, or ``AdaptedLM``s.
    One processor serves one batch; give the ``attention_mask`` of a batch that is padded on the left.

        model.generate(**inputs, do_sample=True, top_k=0, logits_processor=[DExpertsProcessor(expert, anti_expert)])
    """

    def __init__(
        self,
        expert: Callable[..., Any],
        anti_expert: Callable[..., Any],
        alpha: float = 3.2,
        filter_p: float = 0.9,
        attention_mask: Tensor | None = None,
    ) -> None:
        self.expert = Reader(expert, attention_mask)
        self.anti_expert = Reader(anti_expert, attention_mask)
        self.alpha = alpha
        self.filter = TopPLogitsWarper(filter_p) if filter_p < 1 else None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        expert, anti_expert = (reader.read(input_ids)[0][:, -1] for reader in (self.expert, self.anti_expert))
        base = self.filter(input_ids, scores) if self.filter else scores
        # Outside the nucleus z is -inf, and stays so.
        return torch.where(base.isinf(), base, base + self.alpha * (expert - anti_expert))


class DExperts(LeftToRight):
    """Steers with two language models, one of the wanted class and one of the other.

    Args:
        expert: ``class_lm`` checkpoint of the wanted class.
        anti_expert: ``class_lm`` checkpoint of the other class.
        alpha: how strongly they steer; the paper has 3.2 for sentiment and 2.0 for toxicity.
        filter_p: nucleus of the base model, taken before the logits are combined; 0.9 in the paper.
        nucleus: probability mass to sample from afterwards; all of it in the paper.
        batch_size: samples that are written together.
    """

    name = "dexperts"

    def __init__(
        self,
        expert: str,
        anti_expert: str,
        alpha: float = 3.2,
        filter_p: float = 0.9,
        nucleus: float = 1.0,
        batch_size: int = 32,
    ) -> None:
        super().__init__(nucleus, 0, batch_size)
        self.expert, self.anti_expert = expert, anti_expert
        self.alpha, self.filter_p = alpha, filter_p

    def steering(self) -> list[str]:
        return [self.expert, self.anti_expert]

    def steer(self, language_model: LanguageModel) -> Steer:
        expert = load_adapted(self.expert, "class_lm", language_model)
        anti_expert = load_adapted(self.anti_expert, "class_lm", language_model)

        def processors(requests: Sequence[Request], rows: Rows) -> list[LogitsProcessor]:
            return [DExpertsProcessor(expert, anti_expert, self.alpha, self.filter_p, rows.mask)]

        return processors
