"""Chains of one length that advance together, and the tasks they work on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mucola import langevin, selection
from mucola.constraints import Constraint
from mucola.langevin import Batch, Chain, Dynamics, Info, State
from mucola.language_model import LanguageModel
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


@dataclass
class Task:
    """A request on its way to a sample."""

    request: Request
    rejected: Check | None = None
    """The best nucleus sample that did not satisfy everything."""
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

    def add(self, tasks: Sequence[Task], generators: Sequence[torch.Generator], tokens: Tensor) -> None:
        """Start a chain for each task at its row of ``tokens``."""
        before = time.perf_counter()
        made = zip(tasks, generators, strict=True)
        chains = [Chain(task.request.prompt, task.request.constraints, generator) for task, generator in made]
        state = langevin.init(Batch(self.language_model, chains), tokens, self.dynamics)
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

    def step(self) -> list[Stopped]:
        """Move every chain once; those that stopped leave the pool."""
        before = time.perf_counter()
        self.state, info = langevin.step(self.batch, self.state, self.dynamics)
        self.best = selection.consider(self.best, self.state)
        self._count(info, (time.perf_counter() - before) / len(self))
        over = selection.converged(self.state, self.dynamics.step_size.steps) | (self.state.step >= self.steps)
        return self._remove(over | ~self.state.finite)

    def _count(self, info: Info, seconds: float) -> None:
        for row, (task, evaluated) in enumerate(zip(self.tasks, info.evaluated.tolist(), strict=True)):
            task.steps += 1
            task.evaluations += evaluated
            task.seconds += seconds
            if self.trace:
                texts = self.language_model.token_texts
                task.traces[-1].record(self.batch.chains[row], self.state, row, info, texts)

    def _remove(self, over: Tensor) -> list[Stopped]:
        if not over.any():
            return []
        found = self.best.found
        stopped = [
            Stopped(self.tasks[row], self.best.tokens[row] if found[row] else None)
            for row in over.nonzero().squeeze(1).tolist()
        ]
        stay = (~over).nonzero().squeeze(1)
        self.state, self.best = self.state.select(stay), self.best.select(stay)
        self.tasks = [self.tasks[row] for row in stay.tolist()]
        self.batch = Batch(self.language_model, [self.batch.chains[row] for row in stay.tolist()])
        return stopped
