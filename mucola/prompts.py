"""A prompt as the sampler sees it, and the sequences that continue prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mucola.attention import Prefix
from mucola.errors import MucolaError
from mucola.language_model import LanguageModel


@dataclass(frozen=True)
class Prompt:
    """The text that a sample continues. ``id`` seeds its chains, so it should name the prompt for good."""

    text: str
    tokens: tuple[int, ...]
    id: str

    @classmethod
    def of(cls, text: str, language_model: LanguageModel, id: str | None = None) -> Prompt:
        """Encode ``text``; without an ``id`` the text stands for itself."""
        return cls(text, language_model.encode(text), text if id is None else id)

    def require_room(self, length: int, language_model: LanguageModel) -> None:
        """Refuse a length that cannot be: none at all, or beyond what the model can read."""
        if length < 1:
            raise MucolaError(f"The length of a sample must be at least 1 token, not {length}.")
        if len(self.tokens) + length > language_model.context:
            raise MucolaError(
                f"A prompt of {len(self.tokens)} tokens and {length} new ones do not fit into the "
                f"{language_model.context} tokens that {language_model.name} can read; shorten one of them."
            )


@dataclass
class Sequences:
    """Continuations of one length, a row each: what energies and constraints are computed on."""

    language_model: LanguageModel
    prompts: Sequence[Prompt]
    tokens: Tensor
    """(rows, length)"""
    embeddings: Tensor
    """(rows, length, dim): ``table.rows(tokens)``, or a point nearby when a gradient is checked."""
    gumbel: Tensor | None = None
    """(rows, length) of Gumbel noise for a constraint that draws, or None for its likeliest choice."""

    @classmethod
    def of(cls, language_model: LanguageModel, prompts: Sequence[Prompt], tokens: Tensor) -> Sequences:
        """The sequences that stand on ``tokens``."""
        return cls(language_model, prompts, tokens, language_model.table.rows(tokens))

    def __len__(self) -> int:
        return len(self.tokens)

    def select(self, rows: Sequence[int], gumbel: Tensor | None = None) -> Sequences:
        """Some of the rows, with Gumbel noise for them."""
        prompts = [self.prompts[row] for row in rows]
        index = torch.as_tensor(rows, device=self.tokens.device)
        return Sequences(self.language_model, prompts, self.tokens[index], self.embeddings[index], gumbel)

    @cached_property
    def texts(self) -> list[str]:
        """What each row adds to its prompt's text."""
        return [
            continuation_text(self.language_model, prompt, row)
            for prompt, row in zip(self.prompts, self.tokens.tolist(), strict=True)
        ]

    def prefixes(self) -> list[Prefix]:
        """The language model's memory of each row's prompt."""
        return [self.language_model.prefix(prompt.tokens) for prompt in self.prompts]


def continuation_text(language_model: LanguageModel, prompt: Prompt, tokens: Sequence[int]) -> str:
    """The text that ``tokens`` add after the prompt.

    Both are decoded together, because some tokenizers drop a space at the beginning of a text.
    """
    decode = language_model.tokenizer.decode
    if not prompt.text:
        return decode(tokens)
    return decode([*prompt.tokens, *tokens])[len(decode(prompt.tokens)) :]
