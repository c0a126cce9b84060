"""Continuous against fixed batches: the same chains, the same results, in less time.

    python -m benchmarks continuous --prompts prompts.txt

Fixed batches take as many requests as fit and the next ones only when all of those are finished. Prompts differ in
difficulty, so chains differ in length: by default faithful chains, which stop when they stand still.

Two ratios are told. That of chains a second is by the processor's time, where the place of a finished chain in a fixed
batch costs nothing: it is simply not computed. That of steps tells how often the batch moved, which is what counts
on a GPU, where a step takes about the same time whether eight chains take part in it or two.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

import torch
from jsonargparse import auto_cli

import mucola
from decoding.prompts import PromptFile
from mucola import langevin
from mucola.constraints import parse_all
from mucola.pool import Request
from mucola.prompts import Prompt
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
    continuous, busy, moved = _timed(sampler.run(requests, seed))
    fixed, idle, moved_fixed = _timed(_fixed(sampler, requests, batch_size, seed))
    same = sum(continuous[key].tokens == fixed[key].tokens for key in fixed)
    steps_taken = [sample.steps or 0 for sample in fixed.values()]
    print(
        json.dumps(
            {
                "chains": len(requests),
                "continuous_chains_per_second": round(len(requests) / busy, 4),
                "fixed_chains_per_second": round(len(requests) / idle, 4),
                "ratio": round(idle / busy, 3),
                "continuous_batch_steps": moved,
                "fixed_batch_steps": moved_fixed,
                "ratio_of_steps": round(moved_fixed / moved, 3),
                "same_results": f"{same}/{len(fixed)}",
                "steps": [min(steps_taken), statistics.median(steps_taken), max(steps_taken)],
            }
        )
    )


def _fixed(sampler: Sampler, requests: Sequence[Request], batch_size: int, seed: int) -> Iterator[Sample]:
    for start in range(0, len(requests), batch_size):
        yield from sampler.run(requests[start : start + batch_size], seed)


def _timed(samples: Iterator[Sample]) -> tuple[dict[tuple[str, int], Sample], float, int]:
    """Samples, seconds by the processor's clock, which other programs do not disturb, and steps of the batch."""
    before = time.process_time()
    with patch.object(langevin, "step", wraps=langevin.step) as step:
        found = {(sample.prompt_id, sample.sample): sample for sample in samples}
    return found, time.process_time() - before, step.call_count


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
