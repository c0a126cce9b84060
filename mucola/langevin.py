"""Projected Langevin dynamics on embeddings: ``init``, and a ``step`` from one state to the next.

    e' = e - eta grad E(e) + sqrt(2 eta beta) z,      y = argmin_v |e' - E_v|^2,      e = E_y

A state carries the value and the gradient of every term at its tokens. A chain whose tokens did not
change keeps them, and one that goes straight back takes up what it knew there: only chains that moved
to something new are evaluated, and a changed multiplier only reweights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from mucola.constraints.base import Constraint, ruled_out
from mucola.lagrangian import Ascent, ascend, coefficients
from mucola.language_model import LanguageModel
from mucola.prompts import Prompt, Sequences
from mucola.schedules import Noise, StepSize


@dataclass(frozen=True)
class Dynamics:
    """The numbers that a chain moves by."""

    step_size: StepSize
    noise: Noise
    ascent: Ascent
    keeps_words: bool = False
    """Whether a keyword that stands in the text stays where it is, while the rest moves; not in the paper."""
    moves: int | None = None
    """The most tokens of a chain that change in one step, those with the strongest pull first; None: any number,
    as in the paper. All at once they answer to a sequence that is gone when they arrive; a few at a time they see
    what the others did."""

    def displacement(self, eta: Tensor, beta: Tensor, gradient: Tensor, gaussian: Tensor) -> Tensor:
        """How far each embedding goes before it is projected, ``- eta grad E + sqrt(2 eta beta) z``."""
        eta, beta = eta[:, None, None], beta[:, None, None]
        return (2 * eta * beta).sqrt() * gaussian - eta * gradient


class Chain(NamedTuple):
    """What one chain continues, under which constraints, with which randomness."""

    prompt: Prompt
    constraints: Sequence[Constraint]
    generator: torch.Generator


class State(NamedTuple):
    """Chains of one length, a row each."""

    tokens: Tensor
    """(chains, length)"""
    nll: Tensor
    """(chains,)"""
    values: Tensor
    """f of each constraint; chains with fewer constraints are padded with ones that hold: (chains, constraints)."""
    holds: Tensor
    """(chains, constraints), bool"""
    gradients: Tensor
    """Of -log P and of each f: (chains, 1 + constraints, length, dim)."""
    multipliers: Tensor
    """(chains, constraints)"""
    left: Tensor
    """The tokens before the last change, and what was known of them: (chains, length)."""
    left_nll: Tensor
    left_values: Tensor
    left_holds: Tensor
    left_gradients: Tensor
    returns: Tensor
    """How often a change went straight back: (chains,)."""
    still: Tensor
    """For how many steps the tokens have not changed: (chains,)."""
    step: Tensor
    """(chains,)"""

    def select(self, rows: Tensor) -> State:
        """Some of the chains."""
        return State(*(field[rows] for field in self))

    def widen(self, columns: int) -> State:
        """Room for more constraints: columns that hold, without value, gradient or weight."""
        more = columns - self.values.shape[1]
        pad = torch.nn.functional.pad
        return self._replace(
            values=pad(self.values, (0, more)),
            holds=pad(self.holds, (0, more), value=True),
            multipliers=pad(self.multipliers, (0, more)),
            gradients=pad(self.gradients, (0, 0, 0, 0, 0, more)),
            left_values=pad(self.left_values, (0, more)),
            left_holds=pad(self.left_holds, (0, more), value=True),
            left_gradients=pad(self.left_gradients, (0, 0, 0, 0, 0, more)),
        )

    def moved_to(self, tokens: Tensor, damping: float, thresholds: Tensor) -> tuple[State, Tensor]:
        """The chains at ``tokens``, and which of them stand where nothing is known yet: (chains,), bool.

        A gradient that was not needed when a chain was here before may be needed by now: that one is not known.
        """
        moved = (tokens != self.tokens).any(dim=1)
        back = moved & (tokens == self.left).all(dim=1)
        needed = coefficients(self.multipliers, self.left_values, thresholds, damping) > 0
        lacking = (needed & (self.left_gradients[:, 1:] == 0).flatten(2).all(dim=2)).any(dim=1)
        known = back & ~lacking
        here = (self.nll, self.values, self.holds, self.gradients)
        there = (self.left_nll, self.left_values, self.left_holds, self.left_gradients)
        nll, values, holds, gradients = (_where(known, b, a) for a, b in zip(here, there, strict=True))
        left = (_where(moved, a, b) for a, b in zip(here, there, strict=True))
        state = self._replace(
            tokens=tokens,
            nll=nll,
            values=values,
            holds=holds,
            gradients=gradients,
            left=_where(moved, self.tokens, self.left),
            **dict(zip(("left_nll", "left_values", "left_holds", "left_gradients"), left, strict=True)),
            returns=self.returns + back,
            still=torch.where(moved, 0, self.still + 1),
            step=self.step + 1,
        )
        return state, moved & ~known

    @classmethod
    def join(cls, parts: Sequence[State]) -> State:
        """The chains of several states in one."""
        columns = max(part.values.shape[1] for part in parts)
        return cls(*(torch.cat(fields) for fields in zip(*(part.widen(columns) for part in parts), strict=True)))

    @property
    def satisfied(self) -> Tensor:
        """Every constraint holds: (chains,), bool."""
        return self.holds.all(dim=1)

    @property
    def finite(self) -> Tensor:
        """Every number is one: (chains,), bool."""
        return self.nll.isfinite() & self.values.isfinite().all(dim=1) & self.gradients.flatten(1).isfinite().all(dim=1)


class Info(NamedTuple):
    """What happened in a step."""

    evaluated: Tensor
    """Whether the LM was evaluated: (chains,), bool."""
    step_size: Tensor
    noise: Tensor


class Batch:
    """The chains that advance together."""

    def __init__(self, language_model: LanguageModel, chains: Sequence[Chain]) -> None:
        self.language_model = language_model
        self.chains = list(chains)
        self.columns = max((len(chain.constraints) for chain in chains), default=0)

    def __len__(self) -> int:
        return len(self.chains)

    @cached_property
    def thresholds(self) -> Tensor:
        """(chains, constraints), 0 where a chain has fewer."""
        padded = [
            [*(c.threshold for c in chain.constraints), *[0.0] * (self.columns - len(chain.constraints))]
            for chain in self.chains
        ]
        return torch.tensor(padded, device=self.language_model.device).view(len(self), self.columns)

    @cached_property
    def banned(self) -> list[Tensor | None] | None:
        """Tokens that each chain's constraints rule out, or None if no chain has any."""
        found = [ruled_out(chain.constraints) for chain in self.chains]
        return found if any(ids is not None for ids in found) else None

    @cached_property
    def drawing(self) -> list[tuple[int, int]]:
        """The (chain, constraint) pairs whose gradient is drawn at every step."""
        return [
            (row, col) for row, chain in enumerate(self.chains) for col, c in enumerate(chain.constraints) if c.draws
        ]

    def breaks_words(self, tokens: Tensor, proposed: Tensor) -> Tensor:
        """Where a change would tear a keyword that stands in ``tokens``, or make it another word: (chains, length)."""
        inside, behind = (torch.zeros(tokens.shape, dtype=torch.bool) for _ in range(2))
        rows = tokens.tolist()
        for row, col in self.drawing:
            place = self.chains[row].constraints[col].place(rows[row])
            if place is not None:
                inside[row, place.start : place.stop] = True
                behind[row, place.stop : place.stop + 1] = True
        starts_word = self.language_model.starts_word[proposed]
        return inside.to(tokens.device) | (behind.to(tokens.device) & ~starts_word)

    def sequences(self, tokens: Tensor) -> Sequences:
        """The chains standing on ``tokens``."""
        return Sequences.of(self.language_model, [chain.prompt for chain in self.chains], tokens)

    def gaussian(self, length: int) -> Tensor:
        """Standard normal noise from each chain's own generator: (chains, length, dim)."""
        shape = (length, self.language_model.table.dim)
        draws = [torch.randn(shape, generator=chain.generator) for chain in self.chains]
        return torch.stack(draws).to(self.language_model.device)

    def gumbel(self, length: int) -> dict[tuple[int, int], Tensor]:
        """Gumbel noise for the pairs that draw, from each chain's own generator: (length,) each."""
        noise = {}
        for row, col in self.drawing:
            uniform = torch.rand(length, generator=self.chains[row].generator).clamp(min=1e-20)
            noise[row, col] = -(-uniform.log()).log()
        return noise


def init(batch: Batch, tokens: Tensor, dynamics: Dynamics) -> State:
    """Chains that start at ``tokens``."""
    chains, length = tokens.shape
    dim, device = batch.language_model.table.dim, tokens.device
    nll = torch.zeros(chains, device=device)
    values = torch.zeros(chains, batch.columns, device=device)
    holds = torch.ones(chains, batch.columns, dtype=torch.bool, device=device)
    gradients = torch.zeros(chains, 1 + batch.columns, length, dim, device=device)
    none = torch.zeros(chains, dtype=torch.long, device=device)
    nowhere = torch.full_like(tokens, -1)
    fresh = State(
        tokens=tokens,
        nll=nll,
        values=values,
        holds=holds,
        gradients=gradients,
        multipliers=values,
        left=nowhere,
        left_nll=nll,
        left_values=values,
        left_holds=holds,
        left_gradients=gradients,
        returns=none,
        still=none,
        step=none,
    )
    everything = torch.ones(chains, dtype=torch.bool, device=tokens.device)
    return _evaluate(batch, fresh, everything, dynamics)


def step(batch: Batch, state: State, dynamics: Dynamics, everything: bool = False) -> tuple[State, Info]:
    """Move every chain once. ``everything`` evaluates chains that stand still too, which changes nothing but time."""
    table, ascent = batch.language_model.table, dynamics.ascent
    settled = torch.where(state.satisfied, state.still, 0)
    eta = dynamics.step_size.at(settled, state.returns)
    beta = dynamics.noise.at(state.step)
    weights = coefficients(state.multipliers, state.values, batch.thresholds, ascent.damping)
    gradient = state.gradients[:, 0] + torch.einsum("nc,ncld->nld", weights, state.gradients[:, 1:])
    gaussian = batch.gaussian(state.tokens.shape[1])
    target = table.rows(state.tokens) + dynamics.displacement(eta, beta, gradient, gaussian)
    tokens, margin = table.nearest_and_margin(target, state.tokens, batch.banned)
    if dynamics.keeps_words and batch.drawing:
        stay = batch.breaks_words(state.tokens, tokens)
        tokens, margin = torch.where(stay, state.tokens, tokens), margin.masked_fill(stay, 0.0)
    if dynamics.moves is not None:
        least = margin.topk(min(dynamics.moves, margin.shape[1]), dim=1).values[:, -1:]
        tokens = torch.where(margin >= least, tokens, state.tokens)
    state, unknown = state.moved_to(tokens, ascent.damping, batch.thresholds)
    evaluated = torch.ones_like(unknown) if everything else unknown
    state = _evaluate(batch, state, evaluated, dynamics)
    raised = ascend(
        state.multipliers,
        state.values,
        batch.thresholds,
        state.holds,
        state.step,
        state.still,
        ascent,
        scale=_gradient_ratio(state.gradients) if ascent.balanced else None,
    )
    return state._replace(multipliers=raised), Info(evaluated, eta, beta)


def _evaluate(batch: Batch, state: State, moved: Tensor, dynamics: Dynamics) -> State:
    """Bring values and gradients up to date where a chain moved, and those that are drawn everywhere."""
    sequences = batch.sequences(state.tokens)
    nll, values, holds, gradients = (field.clone() for field in (state.nll, state.values, state.holds, state.gradients))
    rows = moved.nonzero().squeeze(1).tolist()
    if rows:
        nll[rows], gradients[rows, 0] = _language_model_term(sequences.select(rows))
    gumbel, damping = batch.gumbel(state.tokens.shape[1]), dynamics.ascent.damping
    pairs = [(row, col) for row in rows for col, c in enumerate(batch.chains[row].constraints) if not c.draws]
    for together in _by_batch_key(batch, pairs + batch.drawing):
        at = tuple(torch.tensor(index, device=nll.device) for index in zip(*together, strict=True))
        constraints = [batch.chains[row].constraints[col] for row, col in together]
        noise = torch.stack([gumbel[pair] for pair in together]).to(nll.device) if constraints[0].draws else None
        chosen = sequences.select([row for row, _ in together], noise)
        multipliers, thresholds = state.multipliers[at], batch.thresholds[at]
        # A constraint that held with no weight will most likely hold on: its gradient is left out at first.
        wanted = (
            (coefficients(multipliers, values[at], thresholds, damping) > 0) | ~holds[at] | (state.step[at[0]] == 0)
        )
        found = type(constraints[0]).evaluate_together(constraints, chosen, wanted)
        values[at], holds[at], gradients[at[0], 1 + at[1]] = found
        missed = (coefficients(multipliers, found.values, thresholds, damping) > 0) & ~wanted
        if missed.any():
            again = missed.nonzero().squeeze(1).tolist()
            redo = chosen.select(again, noise[again] if noise is not None else None)
            wanted = torch.ones(len(again), dtype=torch.bool, device=nll.device)
            late = type(constraints[0]).evaluate_together([constraints[i] for i in again], redo, wanted)
            gradients[at[0][again], 1 + at[1][again]] = late.gradients
    return state._replace(nll=nll, values=values, holds=holds, gradients=gradients)


def _language_model_term(sequences: Sequences) -> tuple[Tensor, Tensor]:
    embeddings = sequences.embeddings.detach().requires_grad_(True)
    with torch.enable_grad():
        nll = sequences.language_model.nll(embeddings, sequences.tokens, sequences.prefixes())
        (gradient,) = torch.autograd.grad(nll.sum(), embeddings)
    return nll.detach(), gradient


def _by_batch_key(batch: Batch, pairs: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    groups: dict[object, list[tuple[int, int]]] = {}
    for row, col in pairs:
        groups.setdefault(batch.chains[row].constraints[col].batch_key(), []).append((row, col))
    return list(groups.values())


def _where(chosen: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """``one`` in the chosen rows, ``other`` elsewhere."""
    return torch.where(chosen.view(-1, *[1] * (one.dim() - 1)), one, other)


def _gradient_ratio(gradients: Tensor) -> Tensor:
    """|grad log P| / |grad f| of each constraint, at least 1: (chains, constraints)."""
    norms = gradients.flatten(2).norm(dim=2)
    return (norms[:, :1] / norms[:, 1:].clamp(min=1e-6)).clamp(min=1.0, max=100.0)
