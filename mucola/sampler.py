"""The sampler: from requests to finished samples.

``Sampler.run`` keeps a batch of chains full. A chain that stops leaves at once and the next request
takes its place, so one slow chain never holds the others; what becomes of a chain depends on the
seed, its prompt and its sample index alone, never on the company it keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor

from mucola import calibration
from mucola.constraints import Constraint, parse_all
from mucola.errors import MucolaError
from mucola.generations import Generation
from mucola.language_model import LanguageModel
from mucola.memory import ROWS_PER_CHAIN, Room, chains_that_fit
from mucola.pool import Pool, Request, Stopped, Task
from mucola.prompts import Prompt
from mucola.proposals import Proposals, draw, draw_in
from mucola.randomness import stream
from mucola.settings import Settings
from mucola.trace import Trace
from mucola.verification import Check, check


@dataclass
class Sample(Generation):
    """A generation with the traces of its chains, one for each restart, if they were asked for."""

    traces: list[Trace] = field(default_factory=list)


class Sampler:
    """Samples from one language model with one set of settings.

    ``most`` is how many requests are taken at a time, where others want some too.
    """

    def __init__(
        self, language_model: LanguageModel, settings: Settings | None = None, most: int | None = None
    ) -> None:
        self.language_model = language_model
        self.settings = settings or Settings()
        self.most = most
        self.dynamics = calibration.dynamics(language_model, self.settings)

    def sample(
        self,
        prompt: str,
        length: int = 20,
        num_samples: int = 1,
        constraints: Iterable[str | Constraint] = (),
        seed: int = 0,
        trace: bool = False,
    ) -> list[Sample]:
        """``num_samples`` continuations of ``prompt``, each of ``length`` tokens, under the constraints."""
        requests = self.requests(prompt, length, num_samples, constraints)
        return sorted(self.run(requests, seed, trace), key=lambda done: done.sample)

    def requests(
        self, prompt: str, length: int, num_samples: int, constraints: Iterable[str | Constraint] = ()
    ) -> list[Request]:
        """What ``run`` takes, for ``num_samples`` continuations of one prompt."""
        if num_samples < 1:
            raise MucolaError(f"The number of samples must be at least 1, not {num_samples}.")
        made = parse_all(constraints)
        start = Prompt.of(prompt, self.language_model)
        return [Request(start, length, made, index) for index in range(num_samples)]

    def run(self, requests: Iterable[Request], seed: int = 0, trace: bool = False) -> Iterator[Sample]:
        """Finished samples, in the order in which they finish; requests are taken as there is room."""
        source, exhausted = iter(requests), False
        room = Room(self.settings.batch_size or chains_that_fit(self.language_model))
        drawing = Room(ROWS_PER_CHAIN * room.size)
        proposals = Proposals(self.language_model, self.settings, seed)
        pools: dict[int, Pool] = {}
        waiting: list[Task] = []
        while True:
            held = len(waiting) + len(proposals) + sum(len(pool) for pool in pools.values())
            most = (drawing if self.settings.mode == "fast" else room).size
            free = min(most, self.most or most) - held
            arrived = [Task(request) for request in islice(source, max(0, free))]
            exhausted = len(arrived) < free
            for task in arrived:
                task.request.prepare(self.language_model)
            ready, waiting = [*waiting, *arrived], []
            if self.settings.mode == "fast":
                proposals.add(ready)
                ready = []
                for task, passed in proposals.step(drawing):
                    if passed is None:
                        ready.append(task)
                    else:
                        yield self._finish(task, *passed, seed)
            if ready:
                self._start(ready, pools, seed, trace, room)
            if proposals and sum(len(pool) for pool in pools.values()) < room.size:
                continue  # a few chains take nearly as long as many: while others draw, they wait for company
            for pool in pools.values():
                for stopped in pool.step(room) if pool else ():
                    outcome = self._judge(stopped, seed)
                    if outcome is None:
                        waiting.append(stopped.task)
                    else:
                        yield outcome
            if exhausted and not waiting and not proposals and not any(pools.values()):
                return

    def _start(self, tasks: Sequence[Task], pools: dict[int, Pool], seed: int, trace: bool, room: Room) -> None:
        """Begin a chain for each task, in the pool of its length."""
        for length in sorted({task.request.length for task in tasks}):
            same = [task for task in tasks if task.request.length == length]
            streams = [self._stream(task, seed, "chain") for task in same]
            tokens = self._starting_tokens(same, streams, room)
            if length not in pools:
                pools[length] = Pool(self.language_model, self.dynamics, self.settings.steps, trace)
            pools[length].add(same, streams, tokens, room)

    def _starting_tokens(self, tasks: Sequence[Task], streams: Sequence[torch.Generator], room: Room) -> Tensor:
        table, length = self.language_model.table, tasks[0].request.length
        start = self.settings.start or ("random" if self.settings.mode == "faithful" else "nucleus")
        if start == "random":
            allowed = table.allowed.nonzero().squeeze(1)
            picks = [torch.randint(len(allowed), (length,), generator=generator) for generator in streams]
            return allowed[torch.stack(picks).to(allowed.device)]
        if start == "zeros":
            return table.nearest(torch.zeros(len(tasks), length, table.dim, device=table.weight.device))
        if start == "nucleus" and all(task.start for task in tasks):
            rows = [task.start.tokens for task in tasks if task.start]
        else:
            uniforms = [torch.rand(length, generator=generator) for generator in streams]
            nucleus = 0.0 if start == "greedy" else self.settings.nucleus
            drawn = draw_in(room, self.language_model, [task.request for task in tasks], uniforms, nucleus)
            rows = [found.tokens for found in drawn]
        return torch.tensor(rows, device=table.weight.device)

    def _judge(self, stopped: Stopped, seed: int) -> Sample | None:
        """The sample of a chain that stopped, or None if it shall begin anew."""
        task = stopped.task
        if stopped.tokens is not None:
            (found,) = self._check(task, stopped.tokens[None])
            if found.verified:
                return self._finish(task, found, "langevin", seed)
            if task.unverified is None or found.nll < task.unverified.nll:
                task.unverified = found
        if task.restarts < self.settings.restarts:
            task.restarts += 1
            return None
        if task.unverified is not None:
            return self._finish(task, task.unverified, "langevin", seed)
        return self._finish(task, task.rejected or self._fallback(task, seed), "fallback", seed)

    def _fallback(self, task: Task, seed: int) -> Check:
        uniforms = torch.rand(task.request.length, generator=self._stream(task, seed, "fallback"))
        return draw(self.language_model, [task.request], [uniforms], self.settings.nucleus)[0]

    def _check(self, task: Task, tokens: Tensor) -> list[Check]:
        return check(self.language_model, [task.request.prompt], [task.request.constraints], tokens)

    def _stream(self, task: Task, seed: int, purpose: str) -> torch.Generator:
        return stream(seed, task.request.prompt.id, task.request.sample, purpose, task.restarts)

    def _finish(self, task: Task, found: Check, source: str, seed: int) -> Sample:
        request = task.request
        pairs = zip(request.constraints, found.values, strict=True)
        return Sample(
            prompt_id=request.prompt.id,
            prompt=request.prompt.text,
            sample=request.sample,
            text=found.text,
            source=source,
            tokens=found.tokens,
            satisfied=found.satisfied,
            verified=found.verified,
            values={item.name: {"value": value, "threshold": item.threshold} for item, value in pairs},
            nll=found.nll,
            steps=task.steps,
            evaluations=task.evaluations,
            restarts=task.restarts,
            seed=seed,
            seconds=task.seconds,
            traces=task.traces,
        )


def load(name: str = "smollm2-135m", settings: Settings | None = None, **options: object) -> Sampler:
    """A sampler on the language model ``name``: a built-in name, a folder, or a Hugging Face id.

    ``options`` go to ``from_pretrained`` (``dtype``, ``device_map``, ...).
    """
    from mucola.model_store import load_causal_lm

    model, tokenizer = load_causal_lm(name, **options)
    return Sampler(LanguageModel(model, tokenizer, name), settings)
