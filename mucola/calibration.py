"""Step size and noise that suit a model.

Both depend on the geometry of its table: a step must be long enough to leave a token's cell, whose size
is the distance to the nearest row, and short enough not to leave every cell at once. Presets are the
values that were found by trial for a family; for any other model ``calibrate`` scales those of SmolLM2 by
the two numbers that matter, the nearest-row distance and the norm of the gradient at one token.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch

from mucola.lagrangian import Ascent
from mucola.langevin import Dynamics
from mucola.language_model import LanguageModel
from mucola.schedules import Noise, StepSize
from mucola.settings import Settings


class Geometry(NamedTuple):
    """What step size and noise depend on."""

    distance: float
    """Median distance from a row to the nearest other."""
    gradient: float
    """Median norm of the LM's gradient at one token of a random sequence, where chains begin."""


REFERENCE = Geometry(distance=2.06, gradient=58.2)
"""SmolLM2-135M, on which the reference dynamics were found."""

FAITHFUL = (StepSize(1.0, 1.25), Noise(0.5, 0.005, 30))
WARM = (StepSize(1.0, 1.25, shrink=0.7), Noise(0.2, 0.005, 30))
"""From a nucleus sample: what is fluent already should be bent, not melted."""
FAST_MOVES = 1


def dynamics(language_model: LanguageModel, settings: Settings) -> Dynamics:
    """The settings' own numbers, or else those that suit the model."""
    step_size, noise = FAITHFUL if settings.mode == "faithful" else WARM
    if settings.step_size is None or settings.noise is None:
        scale_step, scale_noise = _scales(language_model)
        step_size = replace(step_size, start=step_size.start * scale_step, end=step_size.end * scale_step)
        noise = replace(noise, start=noise.start * scale_noise, end=noise.end * scale_noise)
    return Dynamics(
        settings.step_size or step_size,
        settings.noise or noise,
        settings.ascent or (Ascent(period=5, balanced=True) if settings.mode == "fast" else Ascent()),
        settings.mode == "fast",
        settings.moves or (None if settings.mode == "faithful" else FAST_MOVES),
    )


def _scales(language_model: LanguageModel) -> tuple[float, float]:
    """What to multiply the reference step size and noise with.

    With distance r and gradient g, a step eta g should cross the same share of r as in the reference, and
    the noise sqrt(2 eta beta) should too: eta ~ r / g and beta ~ r^2 / eta = r g.
    """
    if language_model.model.config.model_type == "llama" and abs(language_model.table.nearest_distance - 2.06) < 0.01:
        return 1.0, 1.0
    found = calibrate(language_model)
    r, g = found.distance / REFERENCE.distance, found.gradient / REFERENCE.gradient
    return r / g, r * g


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
