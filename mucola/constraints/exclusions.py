"""Constraints on what must not be there: excluded words, and repetition.

A token that stands exactly on its row is at the bottom of a well, and the distance to the row says
nothing about the way out. So the value counts unwanted occurrences, and its gradient follows the
table's ``way_out``: along it the count of an occurrence falls from 1 to 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mucola.constraints.base import Constraint
from mucola.constraints.words import appears, spelling
from mucola.errors import MucolaError
from mucola.language_model import LanguageModel
from mucola.prompts import Sequences


class Exclude(Constraint):
    """None of some words or phrases appears in the continuation.

    Chains never step on a token that is itself an excluded word; a phrase of several tokens is pushed out.
    """

    threshold = 0.5

    def __init__(self, words: Sequence[str]) -> None:
        if not words or not all(words):
            raise MucolaError("An exclusion needs at least one word, and no empty one.")
        self.words = tuple(words)
        quoted = ", ".join(f'"{word}"' for word in words).encode("unicode_escape").decode()
        self.name = f"exclude({quoted})"

    def prepare(self, language_model: LanguageModel) -> None:
        texts = language_model.token_texts
        banned = [token for token, text in enumerate(texts) if appears(self.words, "", text)]
        self.banned = torch.tensor(banned, dtype=torch.long, device=language_model.device)
        # Written with a space before it and, where the tokens differ, without.
        spellings = {spelling(word, language_model) for word in self.words}
        spellings |= {language_model.encode(word) for word in self.words}
        self.phrases = [torch.tensor(tokens, device=language_model.device) for tokens in spellings if len(tokens) > 1]

    def value(self, sequences: Sequences) -> Tensor:
        marked = torch.zeros_like(sequences.tokens, dtype=torch.float)
        for tokens in self.phrases:
            marked = torch.maximum(marked, _occurrences(sequences.tokens, tokens))
        counts = _leave(sequences, marked)
        # An occurrence that no phrase explains (another case, across tokens) still counts.
        unexplained = ~self.holds(sequences, counts) & (counts <= self.threshold)
        return counts + unexplained.float()

    def holds(self, sequences: Sequences, values: Tensor) -> Tensor:
        rows = zip(sequences.prompts, sequences.texts, strict=True)
        return torch.tensor([not appears(self.words, prompt.text, text) for prompt, text in rows], device=values.device)


class NoRepetition(Constraint):
    """No n-gram of tokens appears twice in the continuation; the value counts the repeats."""

    threshold = 0.5

    def __init__(self, n: int) -> None:
        if n < 1:
            raise MucolaError(f"The n-grams that may not repeat have at least 1 token, not {n}.")
        self.n = n
        self.name = f"no_repetition({n})"

    def value(self, sequences: Sequences) -> Tensor:
        tokens = sequences.tokens
        marked = torch.zeros_like(tokens, dtype=torch.float)
        for row, ids in enumerate(tokens.tolist()):
            seen = set()
            for place in range(len(ids) - self.n + 1):
                gram = tuple(ids[place : place + self.n])
                if gram in seen:
                    marked[row, place : place + self.n] += 1 / self.n
                seen.add(gram)
        return _leave(sequences, marked)


def _occurrences(tokens: Tensor, phrase: Tensor) -> Tensor:
    """1/l at each of the l tokens of an occurrence of ``phrase``: (rows, length)."""
    rows, length = tokens.shape
    size = len(phrase)
    marked = torch.zeros(rows, length, device=tokens.device)
    for place in range(length - size + 1):
        stands = (tokens[:, place : place + size] == phrase).all(dim=1)
        marked[stands, place : place + size] = 1 / size
    return marked


def _leave(sequences: Sequences, marked: Tensor) -> Tensor:
    """The sum of ``marked``, with the gradient that takes marked tokens off their rows: (rows,)."""
    way = sequences.language_model.table.way_out(sequences.tokens) * (marked > 0)[..., None]
    rows = sequences.language_model.table.rows(sequences.tokens)
    moved = ((sequences.embeddings - rows) * way).sum(dim=-1)  # 0 on the row, -1 at its neighbours' mean
    return (marked * (1 + moved)).sum(dim=1)


def exclude(*words: str) -> Constraint:
    """None of the words or phrases may appear (as whole words, whatever their case; marks anywhere)."""
    return Exclude(words)


def no_repetition(n: int = 3) -> Constraint:
    """No sequence of ``n`` tokens may appear twice."""
    return NoRepetition(n)
