"""Which of the visited sequences is returned, and when a chain may stop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mucola.langevin import State

STOOD_STILL = 5
"""Steps that a sequence must have stood still to be an output: what noise just threw together is not one."""


class Best(NamedTuple):
    """The most likely satisfying sequence of each chain so far."""

    tokens: Tensor
    """(chains, length)"""
    nll: Tensor
    """(chains,), infinite while there is none."""
    step: Tensor
    """At which it was found: (chains,)."""

    @classmethod
    def none(cls, tokens: Tensor) -> Best:
        """Nothing found yet by chains at ``tokens``."""
        chains = (len(tokens),)
        infinite, zero = torch.full(chains, torch.inf), torch.zeros(chains, dtype=torch.long)
        return cls(tokens, infinite.to(tokens.device), zero.to(tokens.device))

    def select(self, rows: Tensor) -> Best:
        """Some of the chains."""
        return Best(*(field[rows] for field in self))

    @classmethod
    def join(cls, parts: Sequence[Best]) -> Best:
        """The chains of several in one."""
        return cls(*(torch.cat(fields) for fields in zip(*parts, strict=True)))

    @property
    def found(self) -> Tensor:
        """(chains,), bool"""
        return self.nll.isfinite()


def consider(best: Best, state: State) -> Best:
    """Keep a chain's present sequence if it satisfies everything, stood still, and is likelier than the best so far."""
    better = state.satisfied & (state.still >= STOOD_STILL) & (state.nll < best.nll)
    return Best(
        torch.where(better[:, None], state.tokens, best.tokens),
        torch.where(better, state.nll, best.nll),
        torch.where(better, state.step, best.step),
    )


def converged(best: Best, state: State, patience: int) -> Tensor:
    """Something was found, and nothing likelier for ``patience`` steps: (chains,), bool."""
    return best.found & (state.step - best.step >= patience)
