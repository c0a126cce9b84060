"""Sampling token by token through transformers' ``generate()``.

``generate()`` draws the tokens of a batch from one random stream, so that a sample would depend on the
rows beside it. Here each request brings its own random numbers and :class:`Draw`, the last logits
processor, spends them; ``generate()`` is left with one possible token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, TopKLogitsWarper

from decoding.baselines.batches import Baseline, Write
from mucola.errors import MucolaError
from mucola.language_model import LanguageModel, nucleus_draw
from mucola.pool import Request
from mucola.randomness import stream


class Rows(NamedTuple):
    """Prompts of different lengths in one batch, padded on the left."""

    tokens: Tensor
    """(rows, longest prompt)"""
    mask: Tensor
    """1 where the language model reads, 0 for padding."""
    text: Tensor
    """The same without the beginning-of-text token that stands for an empty prompt."""

    @classmethod
    def of(cls, requests: Sequence[Request], language_model: LanguageModel) -> Rows:
        """The prompts of requests, a row each."""
        prompts = [request.prompt for request in requests]
        longest = max(len(prompt.tokens) for prompt in prompts)
        tokens = torch.zeros(len(prompts), longest, dtype=torch.long)
        mask = torch.zeros_like(tokens)
        for row, prompt in enumerate(prompts):
            tokens[row, longest - len(prompt.tokens) :] = torch.tensor(prompt.tokens)
            mask[row, longest - len(prompt.tokens) :] = 1
        written = torch.tensor([bool(prompt.text) for prompt in prompts])
        device = language_model.device
        return cls(tokens.to(device), mask.to(device), (mask * written[:, None]).to(device))


Steer = Callable[[Sequence[Request], Rows], list[LogitsProcessor]]
"""Makes the processors that steer one batch."""


class LeftToRight(Baseline):
    """Samples from the language model's distribution as a subclass bends it."""

    def __init__(self, nucleus: float, top_k: int, batch_size: int) -> None:
        super().__init__(batch_size)
        if not 0 < nucleus <= 1:
            raise MucolaError(f"The nucleus is a probability above 0 and at most 1, not {nucleus}.")
        if top_k < 0:
            raise MucolaError(f"top_k is a number of tokens, or 0 for all of them, not {top_k}.")
        self.nucleus, self.top_k = nucleus, top_k

    def steer(self, language_model: LanguageModel) -> Steer:
        """Load what steers; here nothing does."""
        return lambda requests, rows: []

    def active(self, language_model: LanguageModel) -> Callable[[], AbstractContextManager[Any]]:
        """What gives the transformers model to sample from."""
        return lambda: nullcontext(language_model.model)

    def writer(self, language_model: LanguageModel) -> Write:
        steer, active = self.steer(language_model), self.active(language_model)

        def write(requests: Sequence[Request], seed: int) -> Tensor:
            rows, length = Rows.of(requests, language_model), requests[0].length
            streams = [stream(seed, item.prompt.id, item.sample, self.name) for item in requests]
            uniforms = torch.stack([torch.rand(length, generator=generator) for generator in streams])
            processors = [Allowed(language_model.table.allowed), *steer(requests, rows)]
            if self.top_k:
                processors.append(TopKLogitsWarper(self.top_k))
            with active() as model:
                return generate(model, rows, [*processors, Draw(uniforms.to(rows.tokens.device), self.nucleus)])

        return write


class Allowed(LogitsProcessor):
    """Leaves the tokens that a text may hold; all methods write with the same ones, and none ends a text early."""

    def __init__(self, allowed: Tensor) -> None:
        self.allowed = allowed

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores.masked_fill(~self.allowed, -torch.inf)


class Draw(LogitsProcessor):
    """Draws one token a row from the nucleus, by inverting the cumulative distribution at the row's next number.

    The nucleus is taken here, not by a processor of transformers, which sorts the whole vocabulary: that took longer
    than the language model itself.
    """

    def __init__(self, uniforms: Tensor, nucleus: float = 1.0) -> None:
        self.uniforms = uniforms
        self.nucleus = nucleus
        self.drawn = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        tokens = nucleus_draw(scores, self.uniforms[:, self.drawn], self.nucleus)
        self.drawn += 1
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens[:, None], 0.0)


@torch.no_grad()
def generate(model: Any, rows: Rows, processors: Sequence[LogitsProcessor]) -> Tensor:
    """Continue the rows by as many tokens as the last processor, a :class:`Draw`, has numbers for."""
    (draw,) = (item for item in processors if isinstance(item, Draw))
    # A padding id has to be named; nothing is padded, since all rows end together.
    settings = GenerationConfig(
        max_new_tokens=draw.uniforms.shape[1], do_sample=False, num_beams=1, repetition_penalty=1.0, pad_token_id=0
    )
    written = model.generate(
        input_ids=rows.tokens,
        attention_mask=rows.mask,
        generation_config=settings,
        logits_processor=LogitsProcessorList(processors),
    )
    return written[:, rows.tokens.shape[1] :]
