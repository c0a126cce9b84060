"""The Lagrangian: E = -log P - sum_i (lambda_i - zeta c_i) (eps_i - f_i), with c_i = eps_i - f_i held constant."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mucola.errors import MucolaError


@dataclass(frozen=True)
class Ascent:
    """How multipliers follow their constraints."""

    rate: float = 1.0
    """alpha: what one update adds for each unit of violation."""
    period: int = 20
    """Steps between updates; a violated constraint of a sequence that stands still is updated at every step."""
    damping: float = 0.1
    """zeta: the push of a violated constraint before its multiplier has grown."""
    balanced: bool = False
    """Scale the rate by |grad log P| / |grad f|, so that a constraint with a faint gradient (a classifier's is
    often fifty times smaller than the LM's) is heard after a few updates. The paper does not."""

    def __post_init__(self) -> None:
        if self.rate <= 0 or self.period < 1 or self.damping < 0:
            raise MucolaError("The multipliers need rate > 0, period >= 1 and damping >= 0.")


def coefficients(multipliers: Tensor, values: Tensor, thresholds: Tensor, damping: float) -> Tensor:
    """The weight of each constraint's gradient, lambda - zeta (eps - f), never below 0."""
    return (multipliers - damping * (thresholds - values)).clamp(min=0)


def ascend(
    multipliers: Tensor,
    values: Tensor,
    thresholds: Tensor,
    holds: Tensor,
    step: Tensor,
    still: Tensor,
    ascent: Ascent,
    scale: Tensor | None = None,
) -> Tensor:
    """lambda <- max(0, lambda + alpha (f - eps)) where an update is due.

    ``step`` and ``still`` are (chains,), the others (chains, constraints).
    """
    due = (step % ascent.period == 0)[:, None] | ((still > 0)[:, None] & ~holds)
    rate = ascent.rate if scale is None else ascent.rate * scale
    raised = (multipliers + rate * (values - thresholds)).clamp(min=0)
    return torch.where(due, raised, multipliers)
