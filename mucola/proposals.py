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


CHECKED_AT_ONCE = 4
"""Drafts of a task, the best of those that are left."""
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
        """How many to draw now: all drafts, for they are all needed; else up to a power of two, within a ``share``."""
        if self.stages[0].way != "plain":
            return self.left
        first = FIRST_PROPOSALS if self.task.request.constraints else 1
        return min(max(first, 2 ** self.drawn.bit_length()) - self.drawn, share, self.left)

    def take(self, found: Check, source: str) -> None:
        """Take note of a proposal; the first that passes is kept."""
        if self.passed is None:
            _keep(self.task, found)
            self.passed = Passed(found, source) if found.verified else None

    def missed(self, found: Check) -> None:
        """Take note of how far a plain sample is from what drafts could be led to."""
        together = zip(found.values, self.task.request.constraints, strict=True)
        self.excesses.append([value - item.threshold for value, item in together if item.guides])

    def done(self) -> bool:
        """Whether something passed or there is nothing left to try; else the next stage begins where one is over."""
        if self.passed is None and len(self.stages) > 1 and (self.left == 0 or self.hopeless()):
            self.stages, self.drawn = self.stages[1:], 0
        return self.passed is not None or self.left == 0

    def hopeless(self) -> bool:
        """Whether plain samples miss by so much that waiting for one to pass would cost more than drafts do.

        What they miss by is about normal: a sum over tokens. Asked at powers of two alone, the answer does not depend
        on how many there is room for at once.
        """
        if self.stages[0].way != "plain" or self.drawn < ENOUGH_TO_TELL or self.drawn.bit_count() > 1:
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
        rows: list[_Drawing] = []
        for item in self._drawing:
            wanted = item.next(share)
            if rows and len(rows) + wanted > room.size:
                break  # drafts are written together or not at all: the best of them is the same then
            rows += [item] * wanted
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
        uniforms = [torch.rand(shape, generator=item.stream) for item in rows]
        for item in rows:
            item.drawn += 1
        if way == "plain":
            requests, nucleus = [item.task.request for item in rows], self.settings.nucleus
            for item, found in zip(rows, draw_in(room, self.language_model, requests, uniforms, nucleus), strict=True):
                item.take(found, "ancestral")
                item.missed(found)
        else:
            self._draft(way, rows, uniforms, room)
        share = (time.perf_counter() - before) / len(rows)
        for item in rows:
            item.task.seconds += share

    def _draft(self, way: str, rows: Sequence[_Drawing], uniforms: Sequence[Tensor], room: Room) -> None:
        """All drafts of some tasks; they are checked best first, so few have to be where the first ones pass."""

        def write(part: range) -> list[tuple[float, Written]]:
            these = slice(part.start, part.stop)
            written, merits = self._write(way, rows[these], uniforms[these])
            each = zip(written.tokens.split(1), written.nll.split(1), strict=True)
            return list(zip(merits.tolist(), map(Written._make, each), strict=True))

        drafts: dict[_Drawing, list[tuple[float, Written]]] = {item: [] for item in rows}
        for item, made in zip(rows, (made for part in room.parts(len(rows), write) for made in part), strict=True):
            drafts[item].append(made)
        waiting = {item: sorted(made, key=lambda draft: -draft[0]) for item, made in drafts.items()}
        while waiting:
            pairs = [(item, written) for item, made in waiting.items() for _, written in made[:CHECKED_AT_ONCE]]

            def look(part: range, pairs: list[tuple[_Drawing, Written]] = pairs) -> list[Check]:
                asked, written = zip(*pairs[part.start : part.stop], strict=True)
                joined = Written(*(torch.cat(fields) for fields in zip(*written, strict=True)))
                return _checked(self.language_model, [item.task.request for item in asked], joined)

            found = (check for part in room.parts(len(pairs), look) for check in part)
            for (item, _), each in zip(pairs, found, strict=True):
                item.take(each, "draft")
            left = {item: made[CHECKED_AT_ONCE:] for item, made in waiting.items() if item.passed is None}
            waiting = {item: made for item, made in left.items() if made}

    def _write(self, way: str, rows: Sequence[_Drawing], uniforms: Sequence[Tensor]) -> tuple[Written, Tensor]:
        """Drafts and their merits: (rows,)."""
        requests = [item.task.request for item in rows]
        if way == "words":
            written = draft(self.language_model, requests, uniforms)
            return written, -written.nll
        tokens, (share, once) = [each[:-2] for each in uniforms], torch.stack([each[-2:] for each in uniforms]).T
        strengths = share * torch.tensor([item.stages[0].strongest for item in rows])
        written, weights = guided_draft(self.language_model, requests, tokens, strengths, self.settings.nucleus)
        # The greatest sum of a log weight and Gumbel noise is a draw in proportion to the weights.
        return written, weights.cpu() - (-once.log()).log()


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
