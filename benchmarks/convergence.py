"""What limits convergence: chains as in the paper, and with one thing changed at a time.

    python -m benchmarks convergence [--full]

SmolLM2-135M under ``p(positive) > 0.9`` of the shipped sentiment classifier. Each variant is kept in a file of its own
in OUTPUT/convergence when it is done, and not run again while that file is there. A chain has *found* something once a
satisfying sequence stood still for 5 steps; it goes on until nothing better has come for a while or its steps are over,
and what it would have cost to stop at the first find is read off afterwards. No restarts, no fallbacks.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import mucola
from benchmarks.bench import Options, Report
from evaluation.metrics import distinct
from mucola import calibration
from mucola.constraints import parse_all
from mucola.lagrangian import Ascent
from mucola.langevin import Dynamics
from mucola.language_model import LanguageModel
from mucola.memory import Room
from mucola.pool import Pool, Request, Task
from mucola.prompts import Prompt
from mucola.proposals import draw
from mucola.randomness import stream
from mucola.schedules import Noise, StepSize
from mucola.settings import Settings
from mucola.verification import check

MODEL = "smollm2-135m"
CONSTRAINT = 'classifier("positive") > 0.9'
PROMPTS = (
    "The book",
    "My neighbour",
    "The new restaurant",
    "The weather today",
    "This phone",
    "The last lecture",
    "Our journey",
    "The city council",
    "Her brother",
    "The old house",
)
LENGTH, CHAINS = 12, 2
STEPS = 100
PAPER = "as in the paper"


@dataclass(frozen=True)
class Normalised(Dynamics):
    """The gradient is as long at every place of a chain, so that no place waits for the one in greatest need."""

    def displacement(self, eta: Tensor, beta: Tensor, gradient: Tensor, gaussian: Tensor) -> Tensor:
        norms = gradient.norm(dim=-1, keepdim=True).clamp(min=1e-6)
        return super().displacement(eta, beta, gradient * norms.mean(dim=1, keepdim=True) / norms, gaussian)


@dataclass(frozen=True)
class Preconditioned(Dynamics):
    """Steps and noise are longer in directions in which the rows of the table differ more."""

    table: Tensor | None = None

    @cached_property
    def root(self) -> Tensor:
        """The square root of the rows' covariance, whose eigenvalues are 1 on average: (dim, dim)."""
        assert self.table is not None
        values, vectors = torch.linalg.eigh(torch.cov(self.table.T))
        return (vectors * (values / values.mean()).clamp(min=0).sqrt()) @ vectors.T

    def displacement(self, eta: Tensor, beta: Tensor, gradient: Tensor, gaussian: Tensor) -> Tensor:
        return super().displacement(eta, beta, gradient @ self.root, gaussian) @ self.root


class Variant(NamedTuple):
    """How chains move, and where they start."""

    dynamics: Dynamics
    nucleus: bool = False
    steps: int = STEPS


def variants(language_model: LanguageModel) -> dict[str, Variant]:
    """By the name of what was changed."""
    paper, fast = (calibration.dynamics(language_model, Settings(mode=mode)) for mode in ("faithful", "fast"))
    paper = replace(paper, ascent=Ascent())
    balanced = Ascent(period=5, balanced=True)
    same = {field.name: getattr(paper, field.name) for field in fields(Dynamics)}
    return {
        PAPER: Variant(paper, steps=250),
        "balanced, every 5 steps": Variant(replace(paper, ascent=balanced)),
        "multipliers ten times as fast": Variant(replace(paper, ascent=Ascent(rate=10.0))),
        "one move a step": Variant(replace(paper, moves=1)),
        "nucleus start": Variant(replace(paper, noise=fast.noise), nucleus=True),
        "chains of fast": Variant(fast, nucleus=True),
        "chains of fast, random start": Variant(replace(fast, noise=paper.noise)),
        "balanced multipliers": Variant(replace(paper, ascent=Ascent(balanced=True))),
        "steps shrink on return": Variant(replace(paper, step_size=replace(paper.step_size, shrink=0.7))),
        "normalised gradient": Variant(Normalised(**same)),
        "no noise": Variant(replace(paper, noise=Noise(0.0, 0.0, 1))),
        "half the step size": Variant(replace(paper, step_size=StepSize(0.5, 0.625))),
        "preconditioned": Variant(Preconditioned(**same, table=language_model.table.weight)),
        "three moves a step": Variant(replace(paper, moves=3)),
        "noise for 100 steps": Variant(replace(paper, noise=replace(paper.noise, steps=100))),
        "multipliers every 5 steps": Variant(replace(paper, ascent=Ascent(period=5))),
    }


@dataclass
class Course:
    """What became of one chain."""

    prompt: str
    text: str
    verified: bool
    nll: float | None
    """Nats a token of the best satisfying sequence, None if there is none."""
    steps: int
    evaluations: int
    found_at: list[tuple[int, int, float]]
    """Each time a better one was found: the step, evaluations so far, and its nats a token."""


def main(options: Options) -> None:
    """Run the variants that are not there yet, and compare all."""
    report = Report("convergence", options)
    sampler = mucola.load(MODEL, Settings(mode="faithful"))
    prompts, most = (PROMPTS, 250) if options.full else (PROMPTS[:3], 40)
    folder = options.output / "convergence" / ("full" if options.full else "quick")
    rows: list[list[object]] = []
    done: dict[str, list[Course]] = {}
    for name, variant in variants(sampler.language_model).items():
        path = folder / f"{name.replace(' ', '_')}.json"
        if not path.exists():
            started = time.process_time()
            courses = run(sampler.language_model, variant, prompts, min(variant.steps, most))
            kept = {"seconds": time.process_time() - started, "chains": [asdict(course) for course in courses]}
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(kept, indent=1), encoding="utf-8")
        kept = json.loads(path.read_text(encoding="utf-8"))
        done[name] = [Course(**course) for course in kept["chains"]]
        rows.append([name, *summary(done[name]), kept["seconds"]])
        print(*rows[-1], flush=True)
    report.facts["chains"] = {name: [asdict(course) for course in courses] for name, courses in done.items()}
    columns = ["", f"found in {STEPS} steps", "found", "verified", "nats per token", "first find", "at step"]
    columns += ["after evaluations", "evaluated", "dist-1", "dist-2", "dist-3", "s"]
    note = f"{len(prompts)} prompts, {CHAINS} chains each, {LENGTH} tokens; medians over chains that found something"
    report.table("Convergence", columns, rows, note)
    report.write()
    plot(done, options.output / "convergence.svg")


def run(language_model: LanguageModel, variant: Variant, prompts: Sequence[str], steps: int) -> list[Course]:
    """All chains of a variant, which start at the same tokens as those of any other with the same kind of start."""
    (constraint,) = parse_all([CONSTRAINT])
    starts = [Prompt.of(text, language_model) for text in prompts]
    requests = [Request(prompt, LENGTH, [constraint], sample) for prompt in starts for sample in range(CHAINS)]
    for request in requests:
        request.prepare(language_model)
    tasks = [Task(request) for request in requests]
    streams = [stream(0, request.prompt.id, request.sample, "chain") for request in requests]
    pool, room = Pool(language_model, variant.dynamics, steps, trace=False), Room(len(tasks))
    pool.add(tasks, streams, first_tokens(language_model, requests, streams, variant.nucleus), room)
    finds: dict[int, list[tuple[int, int, float]]] = {id(task): [] for task in tasks}
    outcome: dict[int, Tensor | None] = {}
    while pool:
        outcome |= {id(stopped.task): stopped.tokens for stopped in pool.step(room)}
        settled = torch.where(pool.best.settled, pool.best.nll / LENGTH, torch.inf)
        for task, nll in zip(pool.tasks, settled.tolist(), strict=True):
            seen = finds[id(task)]
            if nll < (seen[-1][2] if seen else float("inf")):
                seen.append((task.steps, task.evaluations, nll))
    found = {id(task): outcome[id(task)] if finds[id(task)] else None for task in tasks}
    return [course(language_model, task, found[id(task)], finds[id(task)]) for task in tasks]


def first_tokens(
    language_model: LanguageModel, requests: Sequence[Request], streams: Sequence[torch.Generator], nucleus: bool
) -> Tensor:
    """Random tokens, or one nucleus sample a chain: (chains, length)."""
    if nucleus:
        uniforms = [torch.rand(LENGTH, generator=generator) for generator in streams]
        return torch.tensor([found.tokens for found in draw(language_model, requests, uniforms, 0.96)])
    allowed = language_model.table.allowed.nonzero().squeeze(1)
    return allowed[torch.stack([torch.randint(len(allowed), (LENGTH,), generator=each) for each in streams])]


def course(
    language_model: LanguageModel, task: Task, tokens: Tensor | None, finds: list[tuple[int, int, float]]
) -> Course:
    """The record of a chain that stopped at its best ``tokens``, if it found any."""
    request = task.request
    if tokens is None:
        return Course(request.prompt.text, "", False, None, task.steps, task.evaluations, finds)
    (found,) = check(language_model, [request.prompt], [request.constraints], tokens[None])
    nll = found.nll / LENGTH
    return Course(request.prompt.text, found.text, found.verified, nll, task.steps, task.evaluations, finds)


def summary(courses: Sequence[Course]) -> list[object]:
    """Shares, medians over the chains that found something, and variety of what they found."""
    found = [course for course in courses if course.found_at]
    texts: dict[str, list[str]] = {}
    for course in found:
        texts.setdefault(course.prompt, []).append(course.text)

    def middle(values: Callable[[Course], float]) -> object:
        return statistics.median(map(values, found)) if found else ""

    return [
        f"{sum(course.found_at[0][0] <= STEPS for course in found) / len(courses):.0%}",
        f"{len(found) / len(courses):.0%}",
        f"{statistics.mean(course.verified for course in courses):.0%}",
        middle(lambda course: course.found_at[-1][2]),
        middle(lambda course: course.found_at[0][2]),
        middle(lambda course: course.found_at[0][0]),
        middle(lambda course: course.found_at[0][1]),
        f"{sum(course.evaluations for course in courses) / sum(course.steps for course in courses):.0%}",
        *(distinct(texts.values(), n) if found else "" for n in (1, 2, 3)),
    ]


def plot(done: dict[str, list[Course]], path: Path) -> None:
    """The share of chains that have found something, against steps and against evaluations."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams["svg.hashsalt"] = "convergence"
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes: Any = figure.subplots(1, 2, sharey=True)
    for number, (name, courses) in enumerate(done.items()):
        style: dict[str, Any] = {"color": f"C{number % 10}", "linestyle": "--" if number >= 10 else "-"}
        if name == PAPER:
            style = {"color": "black", "linewidth": 2.5}
        for axis, column in zip(axes, (0, 1), strict=True):
            found = [course.found_at[0] for course in courses if course.found_at]
            firsts = sorted(first[column] for first in found if first[0] <= STEPS)
            shares = [(count + 1) / len(courses) for count in range(len(firsts))]
            axis.step([0, *firsts, STEPS], [0, *shares, *(shares[-1:] or [0])], where="post", label=name, **style)
    axes[0].set(xlabel="steps", ylabel="share of chains that found something", ylim=(0, 1))
    axes[1].set(xlabel="evaluations of a chain")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=7)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main(Options.given(__doc__))
