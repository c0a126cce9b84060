"""A finished sample, all included: the published code's way, ``faithful``, ``fast``, and plain autoregressive sampling.

    python -m benchmarks sample [--full]

SmolLM2-135M under ``p(positive) > 0.9`` of the shipped sentiment classifier; the same prompts, length and steps for
all. The published way takes its steps one chain after another and each costs the same, so a few of them are timed and
counted up. The others make all samples in one batch.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

import mucola
from benchmarks.bench import MIB, Options, Report, interleaved, ratio
from benchmarks.published import PublishedLoop
from evaluation.metrics import distinct
from mucola.constraints import Constraint, parse_all
from mucola.constraints.classifiers import Classifier
from mucola.pool import Request
from mucola.prompts import Prompt
from mucola.proposals import draw
from mucola.randomness import stream
from mucola.sampler import Sample, Sampler
from mucola.settings import Mode, Settings
from mucola.verification import Check

MODEL = "smollm2-135m"
CONSTRAINT = 'classifier("positive") > 0.9'
PROMPTS = ("The book", "My neighbour", "The new restaurant", "The weather today", "This phone")


class Size(NamedTuple):
    """How much is sampled."""

    prompts: int
    samples: int
    length: int
    steps: int
    published_steps: int


def main(options: Options) -> None:
    """Measure all ways in turns, and what came out of them."""
    report = Report("sample", options)
    size = Size(4, 4, 20, 250, 10) if options.full else Size(2, 2, 12, 30, 4)
    made: dict[str, list[Any]] = {}
    found = interleaved(_cases(size, made), options.rounds(1, 3), warm_up=False)
    report.keep("sample", found)
    count = size.prompts * size.samples
    counted = {"published": size.steps / size.published_steps}
    rows: list[list[object]] = []
    for name, timing in found.items():
        each = counted.get(name, 1 / count)
        published = counted["published"] / each
        rows.append(
            [
                name,
                timing.median * each,
                ratio(timing, found["autoregressive"], each * count),
                ratio(found["published"], timing, published),
                round(timing.memory / MIB),
                *_quality(made.get(name, []), size.length),
            ]
        )
    columns = ["", "s per sample", "times autoregressive", "published is slower", "memory MiB"]
    columns += ["verified", "nats per token", "dist-2", "steps", "sources"]
    note = f"{count} samples of {size.length} tokens at once, at most {size.steps} steps, threads {options.threads}"
    report.table("Finished sample", columns, rows, note)
    _by_batch(report, size, options.rounds(1, 5))
    report.write()


def _by_batch(report: Report, size: Size, rounds: int) -> None:
    """``fast`` against autoregressive alone, in more rounds, for batches of several sizes."""
    rows: list[list[object]] = []
    for samples in (size.samples // 2, size.samples):
        cases = _cases(size._replace(samples=samples), made := {})
        found = interleaved({name: cases[name] for name in ("autoregressive", "fast")}, rounds, warm_up=False)
        count = size.prompts * samples
        report.keep(f"fast, {count} at once", found)
        plain, fast = found["autoregressive"], found["fast"]
        passed = [_quality(made[name], size.length)[0] for name in found]
        rows.append([count, plain.median / count, fast.median / count, ratio(fast, plain), *passed])
    columns = ["at once", "autoregressive s", "fast s", "times autoregressive", "plain verified", "fast verified"]
    report.table("fast", columns, rows, f"s per sample, {rounds} rounds with other seeds each")


def _cases(size: Size, made: dict[str, list[Any]]) -> dict[str, Callable[[], object]]:
    """Each way as a function that makes all samples of a round and puts them into ``made``."""
    samplers = {mode: mucola.load(MODEL, _settings(mode, size)) for mode in ("faithful", "fast")}
    constraints = parse_all([CONSTRAINT])
    language_model = samplers["faithful"].language_model

    def ours(mode: str) -> list[Sample]:
        requests = _requests(samplers[mode], size, constraints)
        return list(samplers[mode].run(requests, seed=_turn(made, mode)))

    def autoregressive() -> list[Check]:
        requests = _requests(samplers["fast"], size, constraints)
        turn = _turn(made, "autoregressive")
        uniforms = [torch.rand(size.length, generator=stream(turn, r.prompt.id, r.sample, "plain")) for r in requests]
        return draw(samplers["fast"].language_model, requests, uniforms, 0.96)

    loop = _published(samplers["faithful"], constraints)

    def published() -> None:
        start = torch.randint(len(language_model.table), (size.length,), generator=torch.Generator().manual_seed(0))
        loop.start(start, seed=0)
        loop.run(size.published_steps)

    def kept(name: str, work: Callable[[], list[Any]]) -> Callable[[], None]:
        return lambda: made.setdefault(name, []).extend(work())

    return {
        "autoregressive": kept("autoregressive", autoregressive),
        "fast": kept("fast", lambda: ours("fast")),
        "faithful": kept("faithful", lambda: ours("faithful")),
        "published": published,
    }


def _settings(mode: Mode, size: Size) -> Settings:
    return Settings(mode=mode, steps=size.steps, restarts=0, batch_size=size.prompts * size.samples)


def _requests(sampler: Sampler, size: Size, constraints: Sequence[Constraint]) -> list[Request]:
    """Prompts are encoded anew: what a sample takes includes reading its prompt."""
    prompts = [Prompt.of(text, sampler.language_model) for text in PROMPTS[: size.prompts]]
    return [Request(prompt, size.length, constraints, index) for prompt in prompts for index in range(size.samples)]


def _published(sampler: Sampler, constraints: Sequence[Constraint]) -> PublishedLoop:
    (constraint,) = constraints
    constraint.prepare(sampler.language_model)
    assert isinstance(constraint, Classifier)
    prompt = sampler.language_model.encode(PROMPTS[0])
    model, index = constraint.model, constraint.index
    return PublishedLoop(sampler.language_model, model, index, constraint.threshold, prompt, sampler.dynamics)


def _turn(made: dict[str, list[Any]], name: str) -> int:
    """Another seed in every round."""
    return len(made.get(name, []))


def _quality(samples: Sequence[Sample | Check], length: int) -> list[object]:
    """Share verified, NLL, variety, steps and sources of all rounds together."""
    if not samples:
        return ["", "", "", "", ""]
    chains = [sample for sample in samples if isinstance(sample, Sample)]
    groups: dict[str, list[str]] = {}
    for sample in chains:
        groups.setdefault(sample.prompt_id, []).append(sample.text)
    return [
        f"{statistics.mean(bool(sample.verified) for sample in samples):.0%}",
        statistics.median((sample.nll or 0.0) / length for sample in samples),
        distinct(groups.values(), 2) if groups else "",
        statistics.mean(sample.steps or 0 for sample in chains) if chains else "",
        ", ".join(f"{source} {count}" for source, count in Counter(s.source for s in chains).most_common()),
    ]


if __name__ == "__main__":
    main(Options.given(__doc__))
