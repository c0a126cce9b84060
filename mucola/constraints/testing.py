"""``check_constraint``: what a user runs on a constraint of their own before trusting it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from mucola.constraints.base import Constraint, value_and_gradient
from mucola.language_model import LanguageModel
from mucola.prompts import Prompt, Sequences


def check_constraint(
    constraint: Constraint,
    language_model: LanguageModel,
    prompts: Sequence[str] = ("The book", ""),
    length: int = 8,
    tolerance: float = 2e-2,
) -> None:
    """Raise ``AssertionError``, in words, where a constraint would mislead the sampler.

    Its value must be one finite number a sequence, the same alone and in a batch; its gradient must agree
    with finite differences along random directions; and its threshold must be a number.
    """
    constraint.prepare(language_model)
    assert math.isfinite(constraint.threshold), f"{constraint}: the threshold is {constraint.threshold}."
    sequences = _random_sequences(language_model, prompts, length)
    values, gradients = value_and_gradient(constraint, sequences)
    assert values.isfinite().all(), f"{constraint}: the values {values.tolist()} are not all finite."
    assert gradients.isfinite().all(), f"{constraint}: the gradient is not finite."
    _check_batching(constraint, sequences, values)
    _check_gradient(constraint, sequences, gradients, tolerance)


def _random_sequences(language_model: LanguageModel, prompts: Sequence[str], length: int) -> Sequences:
    generator = torch.Generator().manual_seed(0)
    allowed = language_model.table.allowed.nonzero().squeeze(1)
    picks = torch.randint(len(allowed), (2 * len(prompts), length), generator=generator)
    made = [Prompt.of(text, language_model) for text in prompts for _ in range(2)]
    return Sequences.of(language_model, made, allowed[picks.to(allowed.device)])


def _check_batching(constraint: Constraint, sequences: Sequences, values: torch.Tensor) -> None:
    for row in range(len(sequences)):
        with torch.no_grad():
            alone = constraint.value(sequences.select([row]))[0]
        assert torch.isclose(alone, values[row], rtol=1e-3, atol=1e-4), (
            f"{constraint}: a sequence has the value {alone:.4f} alone and {values[row]:.4f} in a batch; "
            "the value of a row may not depend on the other rows."
        )


def _check_gradient(
    constraint: Constraint, sequences: Sequences, gradients: torch.Tensor, tolerance: float, trials: int = 4
) -> None:
    generator = torch.Generator().manual_seed(1)
    scale = 1e-3 * sequences.embeddings.norm(dim=-1).mean()
    for _ in range(trials):
        noise = torch.randn(sequences.embeddings.shape, generator=generator).to(gradients)
        # Along the gradient itself as well as across it: a random direction alone sees little of it.
        direction = noise / noise.norm() + gradients / gradients.norm().clamp(min=1e-12)
        with torch.no_grad():
            up = constraint.value(replace(sequences, embeddings=sequences.embeddings + scale * direction))
            down = constraint.value(replace(sequences, embeddings=sequences.embeddings - scale * direction))
        slope = ((up.double() - down.double()) / (2 * scale)).sum()
        expected = (gradients * direction).double().sum()
        assert abs(slope - expected) <= tolerance * max(abs(expected), gradients.norm(), 1e-3), (
            f"{constraint}: along a random direction the value changes by {slope:.4g}, the gradient says "
            f"{expected:.4g}; value() must be differentiable in sequences.embeddings and detach nothing."
        )
