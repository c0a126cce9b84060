"""Models that read along while ``generate()`` writes, each token once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache

from mucola.errors import MucolaError


class News(NamedTuple):
    """What a reader has not read yet."""

    tokens: Tensor
    """(rows, new)"""
    text: Tensor
    """(rows, new), bool: which of them are text, neither padding nor condition."""
    positions: Tensor
    """(rows, new)"""
    first: bool
    """Whether nothing was read before."""


class Reader:
    """A causal LM that reads a ``condition`` and then the text, with a cache of its own.

    ``model`` is any causal LM of transformers, or an ``AdaptedLM``. ``mask`` says which tokens of the first
    ``input_ids`` are text; it is the attention mask of a batch that is padded on the left, and may be left out
    where nothing is padded. Ids that do not go on from those of the last call (another ``generate()``, beams that
    changed places) are read from the beginning, so they are right in any case and fast for sampling.
    """

    def __init__(
        self, model: Callable[..., Any], mask: Tensor | None = None, condition: Sequence[int] = (), keep: int = 1
    ) -> None:
        self.model = model
        self.first_mask = mask
        self.condition = tuple(condition)
        self.keep = keep
        self.ids: Tensor | None = None
        self.mask: Tensor
        self.cache: DynamicCache

    @torch.no_grad()
    def read(self, input_ids: Tensor) -> tuple[Tensor, News]:
        """Logits after what is new, (rows, new, vocabulary), or after the last token alone if ``keep`` is 1."""
        news = self.advance(input_ids)
        output = self.model(
            input_ids=news.tokens,
            attention_mask=self.mask,
            position_ids=news.positions,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=self.keep,
        )
        return output.logits.float(), news

    def advance(self, input_ids: Tensor) -> News:
        """Find what is new in ``input_ids``, and count it as read."""
        known = self.ids
        goes_on = (
            known is not None
            and len(known) == len(input_ids)
            and input_ids.shape[1] > known.shape[1]
            and torch.equal(input_ids[:, : known.shape[1]], known)
        )
        self.ids = input_ids.clone()
        if known is not None and goes_on:
            tokens = input_ids[:, known.shape[1] :]
            text = torch.ones_like(tokens, dtype=torch.bool)
            self.mask = torch.cat([self.mask, text.long()], dim=1)
        else:
            tokens, self.mask, text = self._beginning(input_ids)
            self.cache = DynamicCache()
        positions = (self.mask.cumsum(dim=1) - 1).clamp(min=0)[:, self.mask.shape[1] - tokens.shape[1] :]
        return News(tokens, text, positions, first=not goes_on)

    def _beginning(self, input_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, what is to be read of them, and what is text: the condition stands right before each text."""
        mask = torch.ones_like(input_ids) if self.first_mask is None else self.first_mask.to(input_ids.device)
        new = input_ids.shape[1] - mask.shape[1]
        if len(mask) != len(input_ids) or new < 0:
            raise MucolaError(
                f"The mask is for {tuple(mask.shape)} tokens and {tuple(input_ids.shape)} came; "
                "make a new logits processor for each batch."
            )
        mask = torch.cat([mask.bool(), mask.new_ones(len(mask), new).bool()], dim=1)
        condition = input_ids.new_tensor(self.condition)
        rows = [torch.cat([condition, ids[kept]]) for ids, kept in zip(input_ids, mask, strict=True)]
        longest = max(len(row) for row in rows)
        tokens = input_ids.new_zeros(len(rows), longest)
        read, text = torch.zeros_like(tokens), torch.zeros_like(tokens, dtype=torch.bool)
        for row, ids in enumerate(rows):
            start = longest - len(ids)
            tokens[row, start:] = ids
            read[row, start:] = 1
            text[row, start + len(condition) :] = True
        return tokens, read, text
