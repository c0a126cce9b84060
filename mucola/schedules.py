"""How noise and step size change over the life of a chain."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mucola.errors import MucolaError

MOST_RETURNS = 8


@dataclass(frozen=True)
class Noise:
    """beta falls from ``start`` to ``end`` in geometric progression over ``steps`` steps, then stays."""

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        if self.start < 0 or self.end < 0 or (self.start > 0) != (self.end > 0) or self.steps < 1:
            raise MucolaError("Noise falls from a positive start to a positive end (or both are 0) in 1 step or more.")

    def at(self, step: Tensor) -> Tensor:
        """beta at each chain's step."""
        if self.start == 0:
            return torch.zeros_like(step, dtype=torch.float)
        share = (step / self.steps).clamp(max=1.0)
        return self.start * (self.end / self.start) ** share


@dataclass(frozen=True)
class StepSize:
    """eta is ``start`` while a chain moves; once it has settled it grows linearly to ``end`` in ``steps`` steps."""

    start: float
    end: float
    steps: int = 40
    shrink: float = 1.0
    """What a chain's steps are multiplied with each time it returns to the sequence it has just left: a step that
    overshoots goes back and forth for ever. 1: never, as in the paper."""

    def __post_init__(self) -> None:
        if not 0 < self.start <= self.end or self.steps < 1:
            raise MucolaError(
                "The step size grows from a positive start to an end that is not smaller, in 1 step or more."
            )

    def at(self, settled: Tensor, returns: Tensor) -> Tensor:
        """eta of chains that stood still, satisfied, for ``settled`` steps and went back ``returns`` times."""
        grown = self.start + (self.end - self.start) * (settled / self.steps).clamp(max=1.0)
        return grown * self.shrink ** returns.clamp(max=MOST_RETURNS)
