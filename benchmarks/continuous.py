"""Continuous against fixed batches: the same chains, the same results, in less time.

    python -m benchmarks continuous --prompts prompts.txt

Fixed batches take as many requests as fit and the next ones only when all of those are finished. Prompts differ in
difficulty, so their chains, or the number of proposals until one passes, differ in length. There are two kinds:

- *fixed*, the ordinary kind: the shape of a batch stays as it is, so the rows of finished requests are computed on, and
  thrown away, until the last one is finished;
- *shrinking*: rows of finished requests are dropped, which only makes the products smaller.

Ratios of chains a second are by the processor's time. That of steps tells how often the batch of chains moved, which is
what counts on a GPU, where a step takes about the same time whether eight chains take part in it or two.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from jsonargparse import auto_cli
from torch import Tensor

import mucola
from decoding.prompts import PromptFile
from mucola import langevin
from mucola.constraints import parse_all
from mucola.memory import Room
from mucola.pool import Pool, Request, Stopped, Task
from mucola.prompts import Prompt
from mucola.proposals import FIRST_PROPOSALS, Passed, Proposals
from mucola.sampler import Sample, Sampler
from mucola.settings import Mode, Settings

CONSTRAINTS = ['classifier("toxic", prompt=False) < 0.01']


def main(
    prompts: Path,
    first: int = 16,
    samples: int = 2,
    length: int = 12,
    batch_size: int = 8,
    steps: int = 250,
    restarts: int = 1,
    mode: Mode = "faithful",
    constraint: list[str] = CONSTRAINTS,
    seed: int = 0,
    threads: int = 1,
) -> None:
    """Run the same requests both ways and compare."""
    torch.set_num_threads(threads)
    settings = Settings(mode=mode, steps=steps, restarts=restarts, batch_size=batch_size)
    sampler = mucola.load("smollm2-135m", settings)
    made = parse_all(constraint)
    requests = [
        Request(Prompt.of(entry.text, sampler.language_model, entry.id), length, made, index)
        for entry in PromptFile(str(prompts), first=first).read().entries
        for index in range(samples)
    ]
    list(sampler.run(requests[:1], seed))  # whatever is slow only once
    continuous = _timed(sampler.run(requests, seed))
    shrinking = _timed(_batches(sampler, requests, batch_size, seed))
    with patch.object(mucola.sampler, "Proposals", _FixedProposals), patch.object(mucola.sampler, "Pool", _FixedPool):
        fixed = _timed(_batches(sampler, requests, batch_size, seed))
    found: dict[str, object] = {"chains": len(requests)}
    steps_taken = [sample.steps or 0 for sample in continuous.samples.values()]
    found["steps"] = [min(steps_taken), statistics.median(steps_taken), max(steps_taken)]
    found["sources"] = Counter(sample.source for sample in continuous.samples.values())
    found["continuous"] = {"chains_per_second": len(requests) / continuous.seconds, "batch_steps": continuous.moves}
    for name, way in (("fixed", fixed), ("shrinking", shrinking)):
        same = sum(continuous.samples[key].tokens == sample.tokens for key, sample in way.samples.items())
        found[name] = {
            "chains_per_second": len(requests) / way.seconds,
            "batch_steps": way.moves,
            "continuous_is_faster": way.seconds / continuous.seconds,
            "continuous_takes_fewer_steps": way.moves / continuous.moves if continuous.moves else None,
            "same_results": f"{same}/{len(requests)}",
        }
    print(json.dumps(found, indent=2))


class _FixedProposals(Proposals):
    """Each task has its rows in every round until all tasks are done."""

    _batch: list[Any]

    def add(self, tasks: Sequence[Task]) -> None:
        self._batch = self._batch if self._drawing else []
        super().add(tasks)
        self._batch += self._drawing[len(self._drawing) - len(tasks) :]

    def step(self, room: Room) -> list[tuple[Task, Passed | None]]:
        if self._drawing:
            self._draw([item for item in self._batch for _ in range(FIRST_PROPOSALS)], room)
        return self._take_done()


class _FixedPool(Pool):
    """Chains move until all are finished; what comes out of one is what it had found when it was."""

    _over: Tensor

    def add(self, tasks: Sequence[Task], *arguments: Any) -> None:
        before = self._over if self.tasks else torch.zeros(0, dtype=torch.bool)
        super().add(tasks, *arguments)
        self._over = torch.cat([before, torch.zeros(len(tasks), dtype=torch.bool)])

    def _stop(self, over: Tensor) -> list[Stopped]:
        stopped = self._stopped(over & ~self._over)
        self._over |= over
        if self._over.all():
            super()._stop(self._over)
        return stopped


class _Way(NamedTuple):
    """What one kind of batches did."""

    samples: dict[tuple[str, int], Sample]
    seconds: float
    """Of the processor, which other programs disturb least."""
    moves: int
    """How often a batch of chains moved."""


def _batches(sampler: Sampler, requests: Sequence[Request], batch_size: int, seed: int) -> Iterator[Sample]:
    for start in range(0, len(requests), batch_size):
        yield from sampler.run(requests[start : start + batch_size], seed)


def _timed(samples: Iterator[Sample]) -> _Way:
    before = time.process_time()
    with patch.object(langevin, "step", wraps=langevin.step) as step:
        found = {(sample.prompt_id, sample.sample): sample for sample in samples}
    return _Way(found, time.process_time() - before, step.call_count)


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
