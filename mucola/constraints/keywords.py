"""Constraints that a word or phrase must appear.

For a chain at tokens y, with the table's own soft neighbourhood

    log pi_{n,w} = -|E_{y_n} - E_w|^2 - log sum_v exp(-|E_{y_n} - E_v|^2),

the closeness of a form w_1..w_l of the keyword to the place n is g_n = mean_u log pi_{n+u-1, w_u}. A place
is drawn by Gumbel noise on g / tau, and the gradient pulls that place to the word; the draw itself is
not differentiated.
The value is that of the closest place, which is at most -log pi_{w,w} + 0.1 only if the word stands there.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from mucola.constraints.base import Constraint, Evaluation
from mucola.constraints.words import appears, spelling
from mucola.embeddings import EmbeddingTable
from mucola.errors import MucolaError
from mucola.language_model import LanguageModel
from mucola.prompts import Sequences

TAU = 0.5
SLACK = 0.1
GLUED = 50.0
"""How much further away a place counts where the word stands but is the beginning of a longer one."""


class Keyword(Constraint):
    """At least one of some surface forms appears in the continuation, as a whole word."""

    draws = True
    chance = 0.001

    def __init__(self, forms: Sequence[str], name: str) -> None:
        self.forms = tuple(form.strip() for form in forms)
        if not self.forms or not all(self.forms):
            raise MucolaError("A keyword constraint needs at least one word, and no empty one.")
        self.name = name

    def prepare(self, language_model: LanguageModel) -> None:
        spelled = {form: spelling(form, language_model) for form in self.forms}
        for form, tokens in spelled.items():
            if not tokens:
                raise MucolaError(
                    f"The keyword {form!r} cannot be written with the tokens that {language_model.name} may use; "
                    "leave it out or choose another word."
                )
        table = language_model.table
        self._written = tuple(spelled.values())
        self.spellings = [torch.tensor(tokens, device=table.weight.device) for tokens in spelled.values()]
        # -log pi_{w,w}, the value when the word is there; the closest form sets the threshold.
        here = [table.soft_neighbourhood(tokens)[0].mean() for tokens in self.spellings]
        self.present = max(float(value) for value in here)
        self.threshold = self.present + SLACK

    def least_tokens(self) -> int:
        return min(len(tokens) for tokens in self.spellings)

    def place(self, tokens: Sequence[int]) -> range | None:
        for form in self._written:
            for start in range(len(tokens) - len(form) + 1):
                if tuple(tokens[start : start + len(form)]) == form:
                    return range(start, start + len(form))
        return None

    def value(self, sequences: Sequences) -> Tensor:
        return self.evaluate(sequences).values

    def evaluate(self, sequences: Sequences, wanted: Tensor | None = None) -> Evaluation:
        return self.evaluate_together([self] * len(sequences), sequences, wanted)

    def batch_key(self) -> Hashable:
        return Keyword

    @classmethod
    def evaluate_together(
        cls, constraints: Sequence[Constraint], sequences: Sequences, wanted: Tensor | None = None
    ) -> Evaluation:
        """All keywords of all rows at once: row r under ``constraints[r]``."""
        keywords = [constraint for constraint in constraints if isinstance(constraint, Keyword)]
        table, tokens = sequences.language_model.table, sequences.tokens
        rows = torch.arange(len(tokens), device=tokens.device)
        forms, sizes, owners = _all_forms(keywords, tokens.device)
        closeness = _closeness(table, tokens[owners], forms, sizes)  # (forms, length)
        glued = _is_glued(sequences.language_model.starts_word, tokens[owners], forms, sizes)
        closeness = closeness - GLUED * glued
        # The best place of any form of each row, and the place that is drawn.
        best = torch.full((len(tokens),), -torch.inf, device=tokens.device)
        best = best.scatter_reduce(0, owners, closeness.amax(dim=1), "amax")
        noisy = closeness / TAU if sequences.gumbel is None else closeness / TAU + sequences.gumbel[owners]
        form, place = _best_of_row(noisy, owners, len(tokens))
        texts = zip(keywords, sequences.prompts, sequences.texts, strict=True)
        holds = torch.tensor(
            [appears(key.forms, prompt.text, text) for key, prompt, text in texts], device=tokens.device
        )
        present = torch.tensor([key.present for key in keywords], device=tokens.device)
        values = torch.where(holds, torch.minimum(-best, present), -best)
        gradients = torch.zeros_like(sequences.embeddings)
        if wanted is not None:
            for u in range(forms.shape[1]):
                active = wanted & (u < sizes[form])
                at, word = (place + u).clamp(max=tokens.shape[1] - 1), forms[form, u]
                mean = table.soft_neighbourhood(tokens[rows, at])[1]
                pull = 2 * (mean - table.rows(word)) / sizes[form, None]
                gradients[rows[active], at[active]] = pull[active]
        return Evaluation(values, holds, gradients)


def keyword(*forms: str) -> Constraint:
    """The word or phrase must appear; with several forms ("run", "runs", "ran"), one of them must."""
    quoted = ", ".join(f'"{form}"' for form in forms)
    return Keyword(forms, f"keyword({quoted})")


def _all_forms(keywords: Sequence[Keyword], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Every form of every row: tokens padded with 0 (forms, longest), their number, and the row they belong to."""
    spellings = [(row, tokens) for row, key in enumerate(keywords) for tokens in key.spellings]
    sizes = torch.tensor([len(tokens) for _, tokens in spellings], device=device)
    forms = torch.nn.utils.rnn.pad_sequence([tokens for _, tokens in spellings], batch_first=True)
    return forms, sizes, torch.tensor([row for row, _ in spellings], device=device)


def _closeness(table: EmbeddingTable, tokens: Tensor, forms: Tensor, sizes: Tensor) -> Tensor:
    """g_n of each form and place, -inf where the form would not fit: (forms, length)."""
    here, words = table.rows(tokens), table.rows(forms)
    distance = here.square().sum(-1)[:, None] + words.square().sum(-1)[..., None] - 2 * words @ here.transpose(1, 2)
    log_pi = -distance.clamp(min=0) - table.soft_neighbourhood(tokens)[0][:, None]
    places = torch.arange(tokens.shape[1], device=tokens.device)
    too_late = places[None] > (tokens.shape[1] - sizes)[:, None]
    return _along(log_pi, sizes).masked_fill(too_late, -torch.inf)


def _along(scores: Tensor, sizes: Tensor) -> Tensor:
    """Mean over a form's tokens of what each scores at its place: (forms, longest, length) to (forms, length)."""
    count, longest, length = scores.shape
    total = torch.zeros(count, length, device=scores.device)
    for u in range(min(length, longest)):
        shifted = torch.zeros_like(total)
        shifted[:, : length - u] = scores[:, u, u:]
        total += torch.where((u < sizes)[:, None], shifted, 0.0)
    return total / sizes[:, None]


def _is_glued(starts_word: Tensor, tokens: Tensor, forms: Tensor, sizes: Tensor) -> Tensor:
    """Places where the form stands but the next token goes on with the word ("beach" + "es"): (forms, length)."""
    count, length = tokens.shape
    stands = torch.ones(count, length, dtype=torch.bool, device=tokens.device)
    for u in range(forms.shape[1]):
        same = torch.zeros_like(stands)
        same[:, : max(0, length - u)] = tokens[:, u:] == forms[:, u, None]
        stands &= same | (u >= sizes)[:, None]
    after = torch.arange(length, device=tokens.device)[None] + sizes[:, None]
    follows = tokens.gather(1, after.clamp(max=length - 1))
    return stands & (after < length) & ~starts_word[follows]


def _best_of_row(scores: Tensor, owners: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """The form and place with the highest score among the forms of each row: (rows,), (rows,)."""
    top, place = scores.max(dim=1)
    best = torch.full((rows,), -torch.inf, device=scores.device).scatter_reduce(0, owners, top, "amax")
    candidates = torch.arange(len(owners), device=scores.device).masked_fill(top < best[owners], len(owners))
    form = torch.full((rows,), len(owners), device=scores.device).scatter_reduce(0, owners, candidates, "amin")
    form = form.clamp(max=len(owners) - 1)
    return form, place[form]
