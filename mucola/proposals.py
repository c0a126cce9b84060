"""Nucleus samples of the LM: proposals that may satisfy the constraints by themselves, starts, and fallbacks.

A proposal that satisfies every constraint is an exact sample of the constrained (nucleus-truncated) LM,
for it was drawn from the LM and kept only for satisfying them. Each task draws from a stream of its own
and takes the first proposal that passes, so neither the batch nor the other tasks change what it gets.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from mucola.language_model import LanguageModel
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
    tokens = language_model.continuations(prefixes, torch.stack(list(uniforms)), nucleus)
    return check(language_model, [item.prompt for item in requests], [item.constraints for item in requests], tokens)


def draw_in(
    room: Room,
    language_model: LanguageModel,
    requests: Sequence[Request],
    uniforms: Sequence[Tensor],
    nucleus: float,
) -> list[Check]:
    """The same, as many at once as there is room for."""

    def work(rows: range) -> list[Check]:
        part = slice(rows.start, rows.stop)
        return draw(language_model, requests[part], uniforms[part], nucleus)

    return [found for part in room.parts(len(requests), work) for found in part]


def budget(request: Request, settings: Settings) -> int:
    """How many proposals a request is worth.

    As many as the settings allow, since a chain costs more than that; but one, to start the chain from,
    when the constraints say that a plain sample as good as never satisfies them (keywords).
    """
    chance = math.prod(item.chance for item in request.constraints)
    return settings.proposals if chance * settings.proposals >= 1 else 1


def propose(
    language_model: LanguageModel, tasks: Sequence[Task], settings: Settings, seed: int, room: Room
) -> list[Check | None]:
    """For each task the first proposal that passes, or None; the best of the others is kept in the task."""
    streams = [stream(seed, task.request.prompt.id, task.request.sample, "proposal") for task in tasks]
    left = [budget(task.request, settings) for task in tasks]
    passed: list[Check | None] = [None] * len(tasks)
    while open_ := [index for index in range(len(tasks)) if passed[index] is None and left[index] > 0]:
        each = max(1, room.size // len(open_))
        rows = [index for index in open_ for _ in range(min(each, left[index]))]
        uniforms = [torch.rand(tasks[index].request.length, generator=streams[index]) for index in rows]
        for length in sorted({len(row) for row in uniforms}):
            same = [at for at, row in enumerate(uniforms) if len(row) == length]
            before = time.perf_counter()
            drawn = draw_in(
                room,
                language_model,
                [tasks[rows[at]].request for at in same],
                [uniforms[at] for at in same],
                settings.nucleus,
            )
            share = (time.perf_counter() - before) / len(same)
            for at, found in zip(same, drawn, strict=True):
                task = tasks[rows[at]]
                left[rows[at]] -= 1
                task.seconds += share
                if passed[rows[at]] is None:
                    _keep(task, found)
                    passed[rows[at]] = found if found.verified else None
    return passed


def _keep(task: Task, found: Check) -> None:
    """Remember the proposal that is closest to satisfying everything; of equals, the likelier."""
    rank = (*found.violation(task.request.constraints), found.nll)
    best = task.rejected
    if best is None or rank < (*best.violation(task.request.constraints), best.nll):
        task.rejected = found
