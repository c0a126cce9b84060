"""Nucleus samples of the LM: proposals that may satisfy the constraints by themselves, starts, and fallbacks.

A proposal that satisfies every constraint is an exact sample of the constrained (nucleus-truncated) LM,
for it was drawn from the LM and kept only for satisfying them. Each task draws from a stream of its own
and takes the first proposal that passes, so neither the batch nor the other tasks change what it gets.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mucola.drafts import DRAFTS, draft, wants_words
from mucola.language_model import LanguageModel, Written
from mucola.memory import Room
from mucola.pool import Request, Task
from mucola.randomness import stream
from mucola.settings import Settings
from mucola.verification import Check, check


def draw(
    language_model: LanguageModel, requests: Sequence[Request], uniforms: Sequence[Tensor], nucleus: float
) -> list[Check]:
    """One nucleus sample for each request, checked."""
    prefixes = [language_model.prefix(request.prompt.tokens) for request in requests]
    return _checked(
        language_model, requests, language_model.continuations(prefixes, torch.stack(list(uniforms)), nucleus)
    )


def draw_drafts(language_model: LanguageModel, requests: Sequence[Request], uniforms: Sequence[Tensor]) -> list[Check]:
    """One draft for each request, checked."""
    return _checked(language_model, requests, draft(language_model, requests, uniforms))


def _checked(language_model: LanguageModel, requests: Sequence[Request], written: Written) -> list[Check]:
    prompts, constraints = [item.prompt for item in requests], [item.constraints for item in requests]
    return check(language_model, prompts, constraints, written.tokens, written.nll)


def budget(request: Request, settings: Settings) -> int:
    """How many proposals a request is worth: as many as the settings allow, for a chain costs more than that.

    But one, to start the chain from, when a constraint says that a plain sample as good as never satisfies it.
    """
    if wants_words(request):
        return DRAFTS
    chance = math.prod(item.chance for item in request.constraints)
    return settings.proposals if chance * settings.proposals >= 1 else 1


FIRST_PROPOSALS = 4
"""A few rows take hardly longer than one."""


@dataclass
class _Drawing:
    task: Task
    stream: torch.Generator
    left: int
    drawn: int = 0
    passed: Check | None = None

    @property
    def kind(self) -> tuple[bool, int]:
        """Those of one kind are drawn together."""
        return wants_words(self.task.request), self.task.request.length

    def next(self, share: int) -> int:
        """How many to draw now: all drafts, for they are all needed; else as many as before, within a ``share``."""
        request = self.task.request
        if wants_words(request):
            return self.left
        first = FIRST_PROPOSALS if request.constraints else 1
        return min(max(first, self.drawn), share, self.left)


class Proposals:
    """Tasks that draw until a proposal passes or they have drawn enough; each leaves at once and makes room.

    Where there are keywords the proposals are drafts. They are no exact samples of the LM, and the best one is taken.
    """

    def __init__(self, language_model: LanguageModel, settings: Settings, seed: int) -> None:
        self.language_model = language_model
        self.settings = settings
        self.seed = seed
        self._drawing: list[_Drawing] = []

    def __len__(self) -> int:
        return len(self._drawing)

    def add(self, tasks: Sequence[Task]) -> None:
        """Let tasks draw."""
        for task in tasks:
            task.start = None
            names = (task.request.prompt.id, task.request.sample, "proposal", task.restarts)
            self._drawing.append(_Drawing(task, stream(self.seed, *names), budget(task.request, self.settings)))

    def step(self, room: Room) -> list[tuple[Task, Check | None]]:
        """Draw as many proposals as there is room for; the tasks that are done, each with what passed, if any did.

        The best of a task's proposals is where its chain starts.
        """
        if not self._drawing:
            return []
        share = max(1, room.size // len(self))
        rows = [item for item in self._drawing for _ in range(item.next(share))][: room.size]
        for words, length in sorted({item.kind for item in rows}):
            self._draw([item for item in rows if item.kind == (words, length)], room)
        return self._take_done()

    def _take_done(self) -> list[tuple[Task, Check | None]]:
        done = [item for item in self._drawing if item.passed or item.left == 0]
        self._drawing = [item for item in self._drawing if not item.passed and item.left > 0]
        return [(item.task, item.passed) for item in done]

    def _draw(self, rows: Sequence[_Drawing], room: Room) -> None:
        words, length = rows[0].kind
        uniforms = [torch.rand((length, 2) if words else (length,), generator=item.stream) for item in rows]
        requests = [item.task.request for item in rows]
        before = time.perf_counter()
        drawn = draw_in(room, self.language_model, requests, uniforms, None if words else self.settings.nucleus)
        share = (time.perf_counter() - before) / len(rows)
        for item, found in zip(rows, drawn, strict=True):
            item.left -= 1
            item.drawn += 1
            item.task.seconds += share
            if item.passed is None:
                _keep(item.task, found)
                # A plain sample that passes is exact, so the first one is taken; of drafts the best.
                candidate = found if not words else item.task.start if item.left == 0 else None
                item.passed = candidate if candidate and candidate.verified else None


def draw_in(
    room: Room,
    language_model: LanguageModel,
    requests: Sequence[Request],
    uniforms: Sequence[Tensor],
    nucleus: float | None,
) -> list[Check]:
    """Nucleus samples, or drafts, as many at once as there is room for."""

    def work(rows: range) -> list[Check]:
        part = slice(rows.start, rows.stop)
        if nucleus is None:
            return draw_drafts(language_model, requests[part], uniforms[part])
        return draw(language_model, requests[part], uniforms[part], nucleus)

    return [found for part in room.parts(len(requests), work) for found in part]


def _keep(task: Task, found: Check) -> None:
    """Remember the proposal that is closest to satisfying everything; of equals, the likelier."""
    constraints = task.request.constraints
    task.start = min(filter(None, (task.start, found)), key=lambda item: item.rank(constraints))
    task.rejected = min(filter(None, (task.rejected, found)), key=lambda item: item.rank(constraints))
