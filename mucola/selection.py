"""Which of the visited sequences is returned, and when a chain may stop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mucola.langevin import State

STOOD_STILL = 5
"""Steps after which a sequence has settled. The output is one that has, as in the paper, wherever there is one."""
UNSETTLED = 3
"""How many times as long a chain goes on in the hope of settling, see docs/convergence.md."""


class Best(NamedTuple):
    """The most likely satisfying sequence of each chain so far, one that settled if there was any."""

    tokens: Tensor
    """(chains, length)"""
    nll: Tensor
    """(chains,), infinite while there is none."""
    step: Tensor
    """At which it was found: (chains,)."""
    settled: Tensor
    """Whether it stood still: (chains,), bool."""

    @classmethod
    def none(cls, tokens: Tensor) -> Best:
        """Nothing found yet by chains at ``tokens``."""
        chains = (len(tokens),)
        infinite, zero = torch.full(chains, torch.inf), torch.zeros(chains, dtype=torch.long)
        return cls(tokens, *(field.to(tokens.device) for field in (infinite, zero, zero > 0)))

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
    """Keep a chain's present sequence if it satisfies everything and is likelier, or the first one to settle."""
    settled = state.still >= STOOD_STILL
    likelier = (settled == best.settled) & (state.nll < best.nll)
    better = state.satisfied & (likelier | (settled & ~best.settled))
    return Best(
        torch.where(better[:, None], state.tokens, best.tokens),
        torch.where(better, state.nll, best.nll),
        torch.where(better, state.step, best.step),
        torch.where(better, settled, best.settled),
    )


def converged(best: Best, state: State, patience: int) -> Tensor:
    """Something was found, and nothing better for ``patience`` steps, longer if it did not settle: (chains,), bool."""
    waits = torch.where(best.settled, patience, UNSETTLED * patience)
    return best.found & (state.step - best.step >= waits)
