"""What a user reads is text: constraints are checked on the text itself, encoded anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from mucola.constraints.base import Constraint
from mucola.language_model import LanguageModel
from mucola.prompts import Prompt, Sequences


class Check(NamedTuple):
    """A finished sequence and what its constraints say of it."""

    tokens: list[int]
    text: str
    nll: float
    values: list[float]
    satisfied: bool
    """Every constraint holds on the tokens."""
    verified: bool
    """Every constraint holds on the text."""

    def rank(self, constraints: Sequence[Constraint]) -> tuple[float, ...]:
        """The lower the better: verified or not, violated constraints, what they are over by, and the NLL."""
        over = [value - item.threshold for value, item in zip(self.values, constraints, strict=True)]
        return not self.verified, sum(excess > 0 for excess in over), sum(max(0.0, excess) for excess in over), self.nll


def check(
    language_model: LanguageModel,
    prompts: Sequence[Prompt],
    constraints: Sequence[Sequence[Constraint]],
    tokens: torch.Tensor,
    nll: torch.Tensor | None = None,
) -> list[Check]:
    """Check finished sequences, a row each, under the row's own constraints; ``nll`` if it is known already."""
    sequences = Sequences.of(language_model, prompts, tokens)
    if nll is None:
        with torch.no_grad():
            nll = language_model.nll(sequences.embeddings, tokens, sequences.prefixes())
    each = nll.tolist()
    values, holds = evaluate_rows(sequences, constraints)
    checks = []
    for row, (prompt, ids, text) in enumerate(zip(prompts, tokens.tolist(), sequences.texts, strict=True)):
        satisfied = all(holds[row])
        verified = satisfied
        again = encode_continuation(language_model, prompt, text)
        if again != ids and constraints[row]:
            verified = bool(again) and _holds_on(language_model, prompt, again, constraints[row])
        checks.append(Check(ids, text, each[row], values[row], satisfied, verified))
    return checks


def evaluate_rows(
    sequences: Sequences, constraints: Sequence[Sequence[Constraint]]
) -> tuple[list[list[float]], list[list[bool]]]:
    """Values of each row's constraints and whether they hold, each constraint evaluated on all its rows at once."""
    values: list[list[float]] = [[0.0] * len(items) for items in constraints]
    holds: list[list[bool]] = [[True] * len(items) for items in constraints]
    places: dict[int, list[tuple[int, int]]] = {}
    for row, items in enumerate(constraints):
        for column, item in enumerate(items):
            places.setdefault(id(item), []).append((row, column))
    for found in places.values():
        item = constraints[found[0][0]][found[0][1]]
        result = item.evaluate(sequences.select([row for row, _ in found]))
        for (row, column), value, held in zip(found, result.values.tolist(), result.holds.tolist(), strict=True):
            values[row][column], holds[row][column] = value, held
    return values, holds


def encode_continuation(language_model: LanguageModel, prompt: Prompt, text: str) -> list[int]:
    """The tokens of the continuation when the whole text is encoded anew."""
    whole = language_model.tokenizer(prompt.text + text, add_special_tokens=False).input_ids
    if not prompt.text:
        return whole
    known = len(prompt.tokens)
    if tuple(whole[:known]) == prompt.tokens:
        return whole[known:]
    # The tokenizer joins the end of the prompt with what follows: the continuation by itself is what is left.
    return language_model.tokenizer(text, add_special_tokens=False).input_ids


def _holds_on(
    language_model: LanguageModel, prompt: Prompt, tokens: list[int], constraints: Sequence[Constraint]
) -> bool:
    sequence = Sequences.of(language_model, [prompt], torch.tensor([tokens], device=language_model.device))
    return all(bool(item.evaluate(sequence).holds) for item in constraints)
