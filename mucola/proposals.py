"""Proposals: texts that may satisfy the constraints by themselves, where chains start, and fallbacks.

A nucleus sample of the LM that satisfies every constraint is an exact sample of the constrained (nucleus-truncated)
LM, for it was drawn from the LM and kept only for satisfying them. Where that is too rare, and a constraint can lead
the writing, drafts are written; they are no exact samples. Each task draws from a stream of its own, so neither the
batch nor the other tasks change what it gets.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, fmean, pstdev
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from mucola.drafts import DRAFTS, draft, wants_words
from mucola.guided import STRONGEST, guided_draft, wants_guiding
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


def _checked(language_model: LanguageModel, requests: Sequence[Request], written: Written) -> list[Check]:
    prompts, constraints = [item.prompt for item in requests], [item.constraints for item in requests]
    return check(language_model, prompts, constraints, written.tokens, written.nll)


class Stage(NamedTuple):
    """One way in which a task draws, and how many proposals it is worth."""

    way: Literal["plain", "words", "guided"]
    most: int
    strongest: float = 0.0
    """Up to which strength drafts are guided."""


GUIDED_DRAFTS = 16
PLAIN_BEFORE_GUIDED = 32
"""What a round of guided drafts costs, in plain samples: so at most twice what was needed is spent."""
ENOUGH_TO_TELL = 8
"""Plain samples after which it is estimated whether one of so many more will pass."""
GUIDED_ROUNDS = 4
"""Together less than a chain costs. Each leads twice as strongly as the one before, which was not enough."""


def stages(request: Request, settings: Settings) -> list[Stage]:
    """How a request draws until something passes: as long as the settings allow, for a chain costs more than that.

    But once, to start the chain from, when a constraint says that a plain sample as good as never satisfies it.
    """
    if wants_words(request):
        return [Stage("words", DRAFTS)]
    chance = math.prod(item.chance for item in request.constraints)
    plain = settings.proposals if chance * settings.proposals >= 1 else 1
    if wants_guiding(request) and settings.proposals > PLAIN_BEFORE_GUIDED:
        guided = [Stage("guided", GUIDED_DRAFTS, STRONGEST * 2**before) for before in range(GUIDED_ROUNDS)]
        return [Stage("plain", min(plain, PLAIN_BEFORE_GUIDED)), *guided]
    return [Stage("plain", plain)]


FIRST_PROPOSALS = 4
"""A few rows take hardly longer than one."""


class Passed(NamedTuple):
    """A proposal that satisfies everything."""

    found: Check
    source: str


@dataclass(eq=False)
class _Drawing:
    task: Task
    stream: torch.Generator
    stages: list[Stage]
    drawn: int = 0
    """In this stage."""
    excesses: list[list[float]] = field(default_factory=list)
    """By how much each plain sample misses what the constraints ask for that can lead drafts."""
    drafts: list[tuple[float, Check]] = field(default_factory=list)
    """Those of this stage that satisfy everything, each with its merit."""
    passed: Passed | None = None

    @property
    def left(self) -> int:
        return self.stages[0].most - self.drawn

    @property
    def kind(self) -> tuple[str, int, tuple[Hashable, ...]]:
        """Those of one kind are drawn together."""
        way, request = self.stages[0].way, self.task.request
        guides = [id(item) for item in request.constraints if item.guides] if way == "guided" else []
        return way, request.length, tuple(guides)

    def next(self, share: int) -> int:
        """How many to draw now: all drafts, for they are all needed; else as many as before, within a ``share``."""
        if self.stages[0].way != "plain":
            return self.left
        first = FIRST_PROPOSALS if self.task.request.constraints else 1
        return min(max(first, self.drawn), share, self.left)

    def take(self, found: Check, merit: float | None) -> None:
        """Take note of a proposal. A plain one that passes is exact, so the first is kept; of drafts the best."""
        self.drawn += 1
        if self.passed is not None:
            return
        _keep(self.task, found)
        if merit is None:
            together = zip(found.values, self.task.request.constraints, strict=True)
            self.excesses.append([value - item.threshold for value, item in together if item.guides])
            self.passed = Passed(found, "ancestral") if found.verified else None
        elif found.verified:
            self.drafts.append((merit, found))
        if self.left == 0 and self.drafts:
            self.passed = Passed(max(self.drafts, key=lambda item: item[0])[1], "draft")

    def done(self) -> bool:
        """Whether something passed or there is nothing left to try; else the next stage begins where one is over."""
        if self.passed is None and len(self.stages) > 1 and (self.left == 0 or self.hopeless()):
            self.stages, self.drawn = self.stages[1:], 0
        return self.passed is not None or self.left == 0

    def hopeless(self) -> bool:
        """Whether plain samples miss by so much that waiting for one to pass would cost more than drafts do.

        What they miss by is about normal: a sum over tokens.
        """
        if self.stages[0].way != "plain" or self.drawn < ENOUGH_TO_TELL:
            return False
        missed = [NormalDist(fmean(each), pstdev(each) or 1e-9) for each in zip(*self.excesses, strict=True)]
        return min(each.cdf(0.0) for each in missed) * PLAIN_BEFORE_GUIDED < 1


class Proposals:
    """Tasks that draw until a proposal passes or they have drawn enough; each leaves at once and makes room."""

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
            self._drawing.append(_Drawing(task, stream(self.seed, *names), stages(task.request, self.settings)))

    def step(self, room: Room) -> list[tuple[Task, Passed | None]]:
        """Draw as many proposals as there is room for; the tasks that are done, each with what passed, if any did.

        The best of a task's proposals is where its chain starts.
        """
        if not self._drawing:
            return []
        share = max(1, room.size // len(self))
        rows = [item for item in self._drawing for _ in range(item.next(share))][: room.size]
        for kind in dict.fromkeys(item.kind for item in rows):
            self._draw([item for item in rows if item.kind == kind], room)
        return self._take_done()

    def _take_done(self) -> list[tuple[Task, Passed | None]]:
        done = [item for item in self._drawing if item.done()]
        self._drawing = [item for item in self._drawing if item not in done]
        return [(item.task, item.passed) for item in done]

    def _draw(self, rows: Sequence[_Drawing], room: Room) -> None:
        before = time.perf_counter()
        way, length, _ = rows[0].kind
        shape = {"plain": (length,), "words": (length, 2), "guided": (length + 2,)}[way]
        requests = [item.task.request for item in rows]
        uniforms = [torch.rand(shape, generator=item.stream) for item in rows]
        strongest = [item.stages[0].strongest for item in rows]

        def work(part: range) -> list[tuple[Check, float | None]]:
            these = slice(part.start, part.stop)
            return self._write(way, requests[these], uniforms[these], strongest[these])

        proposals = [proposal for part in room.parts(len(rows), work) for proposal in part]
        share = (time.perf_counter() - before) / len(rows)
        for item, (found, merit) in zip(rows, proposals, strict=True):
            item.task.seconds += share
            item.take(found, merit)

    def _write(
        self, way: str, requests: Sequence[Request], uniforms: Sequence[Tensor], strongest: Sequence[float]
    ) -> list[tuple[Check, float | None]]:
        """Proposals, each with its merit among drafts, of which the best is kept."""
        if way == "plain":
            return [(found, None) for found in draw(self.language_model, requests, uniforms, self.settings.nucleus)]
        if way == "words":
            written = draft(self.language_model, requests, uniforms)
            merits = -written.nll
        else:
            tokens, (share, once) = [each[:-2] for each in uniforms], torch.stack([each[-2:] for each in uniforms]).T
            strengths = share * torch.tensor(strongest)
            written, weights = guided_draft(self.language_model, requests, tokens, strengths, self.settings.nucleus)
            # The greatest sum of a log weight and Gumbel noise is a draw in proportion to the weights.
            merits = weights.cpu() - (-once.log()).log()
        return list(zip(_checked(self.language_model, requests, written), merits.tolist(), strict=True))


def draw_in(
    room: Room,
    language_model: LanguageModel,
    requests: Sequence[Request],
    uniforms: Sequence[Tensor],
    nucleus: float,
) -> list[Check]:
    """Nucleus samples, as many at once as there is room for."""

    def work(rows: range) -> list[Check]:
        part = slice(rows.start, rows.stop)
        return draw(language_model, requests[part], uniforms[part], nucleus)

    return [found for part in room.parts(len(requests), work) for found in part]


def _keep(task: Task, found: Check) -> None:
    """Remember the proposal that is closest to satisfying everything; of equals, the likelier."""
    constraints = task.request.constraints
    task.start = min(filter(None, (task.start, found)), key=lambda item: item.rank(constraints))
    task.rejected = min(filter(None, (task.rejected, found)), key=lambda item: item.rank(constraints))
