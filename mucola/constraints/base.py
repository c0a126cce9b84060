"""What every constraint is: a differentiable f(x, y) with a threshold, ``f <= threshold``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from mucola.errors import MucolaError
from mucola.language_model import LanguageModel
from mucola.prompts import Prompt, Sequences


class Evaluation(NamedTuple):
    """A constraint on some sequences, a row each."""

    values: Tensor
    """(rows,)"""
    holds: Tensor
    """(rows,), bool"""
    gradients: Tensor
    """(rows, length, dim): of the values with respect to the embeddings, 0 where it was not wanted."""


class Guide(Protocol):
    """Says of texts that are being written, a row each, where to go on if they shall satisfy a constraint."""

    def advice(self) -> Tensor:
        """How much each next token helps, but for a constant a row: (rows, vocabulary)."""

    def read(self, tokens: Tensor) -> None:
        """Every text goes on with its token: (rows,)."""


class Constraint(ABC):
    """One thing that the text must satisfy.

    Write ``value`` and you have a constraint: it is differentiated, batched and scheduled for you, and
    ``mucola.check_constraint`` tests it. What needs the language model (its table, its tokenizer) is set
    up in ``prepare``, which is called once before sampling.
    """

    name: str
    """What reports and results call it; it reads like the notation it was written in."""
    threshold: float
    """The constraint holds while ``value <= threshold``."""
    draws: ClassVar[bool] = False
    """Whether the gradient depends on a random draw, so that it must be taken anew at every step."""
    chance: ClassVar[float] = 0.5
    """A guess, before any sample is seen, of how many plain samples of the LM satisfy it."""
    guides: ClassVar[bool] = False
    """Whether it can say of every next token how much it helps, so that drafts can be led by it."""
    banned: Tensor | None = None
    """Ids of tokens that no satisfying text can hold: chains never step on them."""

    @abstractmethod
    def value(self, sequences: Sequences) -> Tensor:
        """f of each row, differentiable in ``sequences.embeddings``: (rows,)."""

    def prepare(self, language_model: LanguageModel) -> None:  # noqa: B027  (most constraints need nothing)
        """Get ready for a language model; raise ``MucolaError`` if the two cannot work together."""

    def least_tokens(self) -> int:
        """Tokens that the constraint takes up for itself: those of a keyword."""
        return 0

    def place(self, tokens: Sequence[int]) -> range | None:
        """Where in ``tokens`` the constraint is fulfilled, if it is so at one place: where a keyword stands."""
        return None

    def guide(self, prompts: Sequence[Prompt]) -> Guide:
        """What leads the writing of texts after these prompts, if the constraint ``guides``."""
        raise NotImplementedError(f"{type(self).__name__} does not guide.")

    def batch_key(self) -> Hashable:
        """Constraints with equal keys are evaluated together, by ``evaluate_together`` of their class."""
        return id(self)

    @classmethod
    def evaluate_together(
        cls, constraints: Sequence[Constraint], sequences: Sequences, wanted: Tensor | None = None
    ) -> Evaluation:
        """Evaluate row r under ``constraints[r]``; here they are all the same one."""
        return constraints[0].evaluate(sequences, wanted)

    def evaluate(self, sequences: Sequences, wanted: Tensor | None = None) -> Evaluation:
        """Values, whether they hold, and the gradients of the rows in ``wanted`` (rows, bool; None: of no row)."""
        gradients = torch.zeros_like(sequences.embeddings)
        if wanted is None or not wanted.any():
            with torch.no_grad():
                values = self.value(sequences)
        else:
            values = torch.zeros(len(sequences), device=gradients.device)
            rest = (~wanted).nonzero().squeeze(1)
            if len(rest):
                with torch.no_grad():
                    values[rest] = self.value(sequences.select(rest.tolist()))
            rows = wanted.nonzero().squeeze(1)
            values[rows], gradients[rows] = value_and_gradient(self, sequences.select(rows.tolist()))
        return Evaluation(values, self.holds(sequences, values), gradients)

    def holds(self, sequences: Sequences, values: Tensor) -> Tensor:
        """Whether each row satisfies the constraint: (rows,), bool."""
        return values <= self.threshold

    def __repr__(self) -> str:
        return self.name


def value_and_gradient(constraint: Constraint, sequences: Sequences) -> tuple[Tensor, Tensor]:
    """f of each row and its gradient with respect to the embeddings."""
    embeddings = sequences.embeddings.detach().requires_grad_(True)
    with torch.enable_grad():
        values = constraint.value(replace(sequences, embeddings=embeddings))
        if values.shape != (len(sequences),):
            raise MucolaError(
                f"{type(constraint).__name__}.value must return one number a sequence, shape ({len(sequences)},), "
                f"not {tuple(values.shape)}."
            )
        (gradient,) = torch.autograd.grad(values.sum(), embeddings)
    return values.detach(), gradient


def ruled_out(constraints: Sequence[Constraint]) -> Tensor | None:
    """Ids of the tokens that no text under these constraints can hold, if there are any."""
    found = [item.banned for item in constraints if item.banned is not None]
    return torch.cat(found) if found else None
