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

from mucola.drafts import DRAFTS, draft, wants_words
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
    return _checked(language_model, requests, tokens)


def draw_drafts(language_model: LanguageModel, requests: Sequence[Request], uniforms: Sequence[Tensor]) -> list[Check]:
    """One draft for each request, checked."""
    return _checked(language_model, requests, draft(language_model, requests, uniforms))


def _checked(language_model: LanguageModel, requests: Sequence[Request], tokens: Tensor) -> list[Check]:
    return check(language_model, [item.prompt for item in requests], [item.constraints for item in requests], tokens)


def budget(request: Request, settings: Settings) -> int:
    """How many proposals a request is worth: as many as the settings allow, for a chain costs more than that.

    But one, to start the chain from, when a constraint says that a plain sample as good as never satisfies it.
    """
    if wants_words(request):
        return DRAFTS
    chance = math.prod(item.chance for item in request.constraints)
    return settings.proposals if chance * settings.proposals >= 1 else 1


def propose(
    language_model: LanguageModel, tasks: Sequence[Task], settings: Settings, seed: int, room: Room
) -> list[Check | None]:
    """For each task the first proposal that passes, or None; the best of the others is where its chain starts.

    Where there are keywords the proposals are drafts, which never pass: they are no samples of the LM.
    """
    streams = [stream(seed, task.request.prompt.id, task.request.sample, "proposal", task.restarts) for task in tasks]
    left = [budget(task.request, settings) for task in tasks]
    passed: list[Check | None] = [None] * len(tasks)
    for task in tasks:
        task.start = None
    while open_ := [index for index in range(len(tasks)) if passed[index] is None and left[index] > 0]:
        each = max(1, room.size // len(open_))
        rows = [index for index in open_ for _ in range(min(each, left[index]))]
        for words, length in sorted({_kind(tasks[index]) for index in rows}):
            same = [index for index in rows if _kind(tasks[index]) == (words, length)]
            shape = (length, 2) if words else (length,)
            uniforms = [torch.rand(shape, generator=streams[index]) for index in same]
            requests = [tasks[index].request for index in same]
            before = time.perf_counter()
            drawn = draw_in(room, language_model, requests, uniforms, None if words else settings.nucleus)
            share = (time.perf_counter() - before) / len(same)
            for index, found in zip(same, drawn, strict=True):
                left[index] -= 1
                tasks[index].seconds += share
                if passed[index] is None:
                    _keep(tasks[index], found)
                    passed[index] = found if found.verified and not words else None
    return passed


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


def _kind(task: Task) -> tuple[bool, int]:
    return wants_words(task.request), task.request.length


def _keep(task: Task, found: Check) -> None:
    """Remember the proposal that is closest to satisfying everything; of equals, the likelier."""
    constraints = task.request.constraints
    task.start = min(filter(None, (task.start, found)), key=lambda item: item.rank(constraints))
    task.rejected = min(filter(None, (task.rejected, found)), key=lambda item: item.rank(constraints))
