"""FUDGE: a discriminator says of each likely next token where the text is heading (Yang, Klein 2021, 2104.05218)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from decoding.baselines.attribute import label_index, load_future
from decoding.baselines.left_to_right import LeftToRight, Rows, Steer
from decoding.baselines.reading import Reader
from mucola.attribute_models import FutureDiscriminator
from mucola.errors import MucolaError
from mucola.language_model import LanguageModel
from mucola.pool import Request


class FudgeProcessor(LogitsProcessor):
    """``log p_LM(x_t | x_<t) + strength * log p(label | x_1..t)`` of the likeliest tokens, for any causal LM.

    The discriminator reads each text with its own cache and all ``candidates`` beside one another in a single
    pass: each of them sees the text and itself. One processor serves one batch; give the ``attention_mask`` of
    a batch that is padded on the left. Models with a sliding window shorter than the text are not for this.

        discriminator = mucola.attribute_models.load_attribute_model("path/to/future", lm=model)
        model.generate(**inputs, do_sample=True, top_k=10, logits_processor=[FudgeProcessor(discriminator, label=1)])
    """

    def __init__(
        self,
        discriminator: FutureDiscriminator,
        label: int,
        strength: float = 1.0,
        candidates: int = 200,
        attention_mask: Tensor | None = None,
    ) -> None:
        self.reader = _CandidateReader(discriminator, attention_mask)
        self.label = label
        self.strength = strength
        self.candidates = candidates

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        likely = scores.log_softmax(dim=1).topk(min(self.candidates, scores.shape[1]), dim=1)
        logits = self.reader.after(input_ids, likely.indices)
        bent = likely.values + self.strength * logits.float().log_softmax(dim=2)[..., self.label]
        return torch.full_like(scores, -torch.inf).scatter(1, likely.indices, bent)


class _CandidateReader(Reader):
    """Reads on, and tries many next tokens without keeping them."""

    def __init__(self, discriminator: FutureDiscriminator, mask: Tensor | None) -> None:
        super().__init__(discriminator, mask)
        self.dtype: torch.dtype = discriminator.lm.lm.dtype

    @torch.no_grad()
    def after(self, input_ids: Tensor, candidates: Tensor) -> Tensor:
        """The discriminator's logits when each of the candidates (rows, n) comes next: (rows, n, labels)."""
        news = self.advance(input_ids)
        count = candidates.shape[1]
        next_position = self.mask.sum(dim=1, keepdim=True).expand(-1, count)
        inputs: dict[str, Any] = {
            "input_ids": torch.cat([news.tokens, candidates], dim=1),
            "position_ids": torch.cat([news.positions, next_position], dim=1),
            "attention_mask": self._sight(news.tokens.shape[1], count),
        }
        logits, _ = self.model(**inputs, past_key_values=self.cache, use_cache=True)
        self.cache.crop(-count)
        return logits[:, -count:]

    def _sight(self, new: int, count: int) -> Tensor:
        """What each new token and each candidate sees, as a bias on attention: (rows, 1, new + n, read + n)."""
        rows, read = self.mask.shape
        sees = torch.zeros(rows, new + count, read + count, dtype=torch.bool, device=self.mask.device)
        sees[:, :, :read] = self.mask[:, None].bool()
        sees[:, :new, :read] &= torch.ones(new, read, device=sees.device).tril(read - new).bool()
        # Everything sees itself; padding too, for attention to nothing is not a number.
        sees |= torch.eye(read + count, device=sees.device).bool()[read - new :]
        bias = torch.zeros(sees.shape, dtype=self.dtype, device=sees.device)
        return bias.masked_fill(~sees, torch.finfo(self.dtype).min)[:, None]


class FUDGE(LeftToRight):
    """Steers with one future discriminator.

    Args:
        model: ``future`` checkpoint.
        label: the class to write.
        strength: the paper's lambda; 1 is Bayes' rule and the default of its code (4 for its topics).
        candidates: how many of the likeliest tokens are tried at each step; 200 in the paper.
        top_k: how many of the best of those to sample from; 10 in the paper.
        nucleus: probability mass to sample from afterwards; all of it in the paper.
        batch_size: samples that are written together.
    """

    name = "fudge"

    def __init__(
        self,
        model: str,
        label: str,
        strength: float = 1.0,
        candidates: int = 200,
        top_k: int = 10,
        nucleus: float = 1.0,
        batch_size: int = 16,
    ) -> None:
        super().__init__(nucleus, top_k, batch_size)
        if candidates < 1:
            raise MucolaError(f"FUDGE needs at least 1 candidate, not {candidates}.")
        self.model, self.label = model, label
        self.strength, self.candidates = strength, candidates

    def steering(self) -> list[str]:
        return [self.model]

    def steer(self, language_model: LanguageModel) -> Steer:
        discriminator = load_future(self.model, language_model)
        label = label_index(self.model, self.label, discriminator.labels)

        def processors(requests: Sequence[Request], rows: Rows) -> list[LogitsProcessor]:
            return [FudgeProcessor(discriminator, label, self.strength, self.candidates, rows.text)]

        return processors
