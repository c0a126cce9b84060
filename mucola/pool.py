"""Chains of one length that advance together, and the tasks they work on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from mucola import langevin, selection
from mucola.constraints import Constraint
from mucola.errors import MucolaError
from mucola.langevin import Batch, Chain, Dynamics, Info, State
from mucola.language_model import LanguageModel
from mucola.memory import Room
from mucola.prompts import Prompt
from mucola.selection import Best
from mucola.trace import Trace
from mucola.verification import Check


@dataclass(frozen=True)
class Request:
    """One sample that is wanted."""

    prompt: Prompt
    length: int
    constraints: Sequence[Constraint] = ()
    sample: int = 0

    def prepare(self, language_model: LanguageModel) -> None:
        """Get the constraints ready, once each, and refuse what cannot be done before work is spent on it."""
        self.prompt.require_room(self.length, language_model)
        needed = self.least_tokens(language_model)
        if needed > self.length:
            words = ", ".join(item.name for item in self.constraints if item.least_tokens())
            raise MucolaError(
                f"{words}: {needed} tokens are needed and the text has only {self.length}; make it longer."
            )

    def least_tokens(self, language_model: LanguageModel) -> int:
        """The shortest text that has room for what the constraints ask for."""
        for item in self.constraints:
            if _prepared.get(item) is not language_model:
                item.prepare(language_model)
                _prepared[item] = language_model
        return sum(item.least_tokens() for item in self.constraints)


_prepared: WeakKeyDictionary[Constraint, LanguageModel] = WeakKeyDictionary()
"""Which constraints are ready, and for what."""


@dataclass
class Task:
    """A request on its way to a sample."""

    request: Request
    start: Check | None = None
    """The best of the last proposals, where the next chain begins."""
    rejected: Check | None = None
    """The best of all proposals, none of which passed."""
    unverified: Check | None = None
    """A chain's result that held on its tokens but not on its text."""
    restarts: int = 0
    steps: int = 0
    evaluations: int = 0
    seconds: float = 0.0
    traces: list[Trace] = field(default_factory=list)


@dataclass
class Stopped:
    """A chain that left the pool; ``tokens`` is None if it found nothing."""

    task: Task
    tokens: Tensor | None


class Pool:
    """The chains in progress."""

    def __init__(self, language_model: LanguageModel, dynamics: Dynamics, steps: int, trace: bool) -> None:
        self.language_model = language_model
        self.dynamics = dynamics
        self.steps = steps
        self.trace = trace
        self.tasks: list[Task] = []
        self.state: State
        self.best: Best
        self.batch = Batch(language_model, [])

    def __len__(self) -> int:
        return len(self.tasks)

    def add(self, tasks: Sequence[Task], generators: Sequence[torch.Generator], tokens: Tensor, room: Room) -> None:
        """Start a chain for each task at its row of ``tokens``."""
        before = time.perf_counter()
        made = zip(tasks, generators, strict=True)
        chains = [Chain(task.request.prompt, task.request.constraints, generator) for task, generator in made]

        def init(rows: range) -> State:
            part = slice(rows.start, rows.stop)
            return langevin.init(Batch(self.language_model, chains[part]), tokens[part], self.dynamics)

        state = State.join(room.parts(len(chains), init, generators))
        best = Best.none(tokens)
        share = (time.perf_counter() - before) / len(tasks)
        for row, (task, chain) in enumerate(zip(tasks, chains, strict=True)):
            task.evaluations += 1
            task.seconds += share
            if self.trace:
                names = [item.name for item in chain.constraints]
                limits = [item.threshold for item in chain.constraints]
                task.traces.append(Trace(chain.prompt.text, task.request.sample, task.restarts, names, limits))
                task.traces[-1].record(chain, state, row, None, self.language_model.token_texts)
        self.state = State.join([self.state, state]) if self.tasks else state
        self.best = Best.join([self.best, best]) if self.tasks else best
        self.tasks += tasks
        self.batch = Batch(self.language_model, [*self.batch.chains, *chains])

    def step(self, room: Room) -> list[Stopped]:
        """Move every chain once, as many together as there is room for; those that stopped leave the pool."""
        before = time.perf_counter()
        parts = room.parts(len(self), self._step, [chain.generator for chain in self.batch.chains])
        self.state = State.join([state for state, _ in parts])
        info = Info(*(torch.cat(fields) for fields in zip(*(info for _, info in parts), strict=True)))
        self.best = selection.consider(self.best, self.state)
        self._count(info, (time.perf_counter() - before) / len(self))
        # A chain that stands on its best is shaken by growing steps, and over when they have grown all the way.
        converged = selection.converged(self.best, self.state, patience=self.dynamics.step_size.steps)
        over = converged | (self.state.step >= self.steps)
        return self._stop(over | ~self.state.finite)

    def _step(self, rows: range) -> tuple[State, Info]:
        if len(rows) == len(self):
            return langevin.step(self.batch, self.state, self.dynamics)
        part = Batch(self.language_model, self.batch.chains[rows.start : rows.stop])
        state = _select(self.state, torch.arange(rows.start, rows.stop, device=self.state.tokens.device), part)
        return langevin.step(part, state, self.dynamics)

    def _count(self, info: Info, seconds: float) -> None:
        for row, (task, evaluated) in enumerate(zip(self.tasks, info.evaluated.tolist(), strict=True)):
            task.steps += 1
            task.evaluations += evaluated
            task.seconds += seconds
            if self.trace:
                texts = self.language_model.token_texts
                task.traces[-1].record(self.batch.chains[row], self.state, row, info, texts)

    def _stop(self, over: Tensor) -> list[Stopped]:
        """Let the chains that are over go."""
        if not over.any():
            return []
        stopped, stay = self._stopped(over), (~over).nonzero().squeeze(1)
        self.tasks = [self.tasks[row] for row in stay.tolist()]
        self.batch = Batch(self.language_model, [self.batch.chains[row] for row in stay.tolist()])
        self.state, self.best = _select(self.state, stay, self.batch), self.best.select(stay)
        return stopped

    def _stopped(self, over: Tensor) -> list[Stopped]:
        found = self.best.found
        return [
            Stopped(self.tasks[row], self.best.tokens[row] if found[row] else None)
            for row in over.nonzero().squeeze(1).tolist()
        ]


def _select(state: State, rows: Tensor, batch: Batch) -> State:
    """Some of the chains, with as many columns for constraints as their own batch has."""
    chosen, columns = state.select(rows), batch.columns
    return chosen._replace(
        values=chosen.values[:, :columns],
        holds=chosen.holds[:, :columns],
        multipliers=chosen.multipliers[:, :columns],
        gradients=chosen.gradients[:, : 1 + columns],
    )
