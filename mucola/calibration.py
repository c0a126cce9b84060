"""Step size, noise and ascent that suit a model.

The first two depend on the geometry of its table: a step must be long enough to leave a token's cell, whose size
is the distance to the nearest row, and short enough not to leave every cell at once. SmolLM2-135M has
values found by trial, GPT-2 those of the paper; for any other model ``calibrate`` measures the two numbers
that matter, the nearest-row distance and the norm of the gradient at one token, and scales.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch

from mucola.lagrangian import Ascent
from mucola.langevin import Dynamics
from mucola.language_model import LanguageModel
from mucola.schedules import Noise, StepSize
from mucola.settings import Mode, Settings


class Geometry(NamedTuple):
    """What step size and noise depend on."""

    distance: float
    """Median distance from a row to the nearest other."""
    gradient: float
    """Median norm of the LM's gradient at one token of a random sequence, where chains begin."""


class Preset(NamedTuple):
    """Step size, noise from random tokens and from a nucleus sample, which should be bent, not melted, and ascent."""

    step_size: StepSize
    noise: dict[Mode, Noise]
    ascent: Ascent
    """Of ``faithful``."""


SMOLLM2 = Preset(
    StepSize(1.0, 1.25), {"faithful": Noise(0.5, 0.005, 30), "fast": Noise(0.2, 0.005, 30)}, Ascent(rate=10.0)
)
"""The paper's rate of ascent, 1, leaves chains standing just short of a threshold, see docs/convergence.md."""
SMOLLM2_TABLE = "94cc5f5137b90f0d"
SMOLLM2_GEOMETRY = Geometry(distance=2.06, gradient=58.2)

GPT2 = Preset(StepSize(0.25, 0.45), {"faithful": Noise(5.0, 0.05, 100), "fast": Noise(0.5, 0.05, 30)}, Ascent())
"""The paper's noise and ascent, its code's step sizes; ``fast`` in the same proportion, not yet tried on GPT-2."""

FAST_SHRINK = 0.7
FAST_MOVES = 1
FAST_ASCENT = Ascent(period=5, balanced=True)


def dynamics(language_model: LanguageModel, settings: Settings) -> Dynamics:
    """The settings' own numbers, or else those that suit the model."""
    fast = settings.mode == "fast"
    step_size, noise, ascent = settings.step_size, settings.noise, settings.ascent
    if step_size is None or noise is None or ascent is None:
        suited = preset(language_model)
        step_size = step_size or replace(suited.step_size, shrink=FAST_SHRINK if fast else 1.0)
        noise = noise or suited.noise[settings.mode]
        ascent = ascent or (FAST_ASCENT if fast else suited.ascent)
    return Dynamics(
        step_size,
        noise,
        ascent,
        keeps_words=fast,
        moves=settings.moves or (FAST_MOVES if fast else None),
    )


def preset(language_model: LanguageModel) -> Preset:
    """What is known to suit a model, or else SmolLM2's numbers scaled to its geometry.

    With distance r and gradient g, a step eta g should cross the same share of r as there, and the noise
    sqrt(2 eta beta) should too: eta ~ r / g and beta ~ r^2 / eta = r g.
    """
    if language_model.table.fingerprint == SMOLLM2_TABLE:
        return SMOLLM2
    if language_model.model.config.model_type == "gpt2":
        return GPT2
    found = calibrate(language_model)
    r, g = found.distance / SMOLLM2_GEOMETRY.distance, found.gradient / SMOLLM2_GEOMETRY.gradient
    size = SMOLLM2.step_size
    return Preset(
        replace(size, start=size.start * r / g, end=size.end * r / g),
        {mode: Noise(noise.start * r * g, noise.end * r * g, noise.steps) for mode, noise in SMOLLM2.noise.items()},
        SMOLLM2.ascent,
    )


def calibrate(language_model: LanguageModel, samples: int = 8, length: int = 12) -> Geometry:
    """Measure a model: its table, and the gradient at a few random sequences."""
    table = language_model.table
    allowed = table.allowed.nonzero().squeeze(1)
    picks = torch.randint(len(allowed), (samples, length), generator=torch.Generator().manual_seed(0))
    tokens = allowed[picks.to(allowed.device)]
    embeddings = table.rows(tokens).requires_grad_(True)
    prefix = language_model.prefix(language_model.encode(""))
    with torch.enable_grad():
        nll = language_model.nll(embeddings, tokens, [prefix] * samples).sum()
        (gradient,) = torch.autograd.grad(nll, embeddings)
    return Geometry(table.nearest_distance, gradient.norm(dim=-1).median().item())
