"""Time and memory of a step as chains, length and prompt grow, on embeddings and on the vocabulary simplex.

    python -m benchmarks growth [--full]

SmolLM2-135M with the shipped sentiment classifier; every chain is evaluated at every step. The memory of a step is
fitted by ``fixed + per token * chains * length + per pair * chains * length^2``, from which follows the longest text
that fits into a given memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import mucola
from benchmarks.bench import MIB, Options, Report, Timing, interleaved, ratio, resident
from benchmarks.models import chains, random_tokens
from benchmarks.step import stepping
from decoding.baselines.simplex_langevin import SimplexLangevin
from mucola.constraints import Constraint, parse_all
from mucola.pool import Request
from mucola.prompts import Prompt
from mucola.sampler import Sampler
from mucola.settings import Settings

MODEL = "smollm2-135m"
CONSTRAINT = 'classifier("positive", prompt=False) > 0.99'
FEW, SHORT = 4, 20
BUDGETS_GIB = (8, 12, 24, 48)
Work = Callable[[], object]


def main(options: Options) -> None:
    """Grow one thing at a time."""
    report, rounds = Report("growth", options), options.rounds(1, 3)
    sampler = mucola.load(MODEL, Settings(mode="faithful"))
    constraints = parse_all([CONSTRAINT])
    constraints[0].prepare(sampler.language_model)
    weights = resident()
    many = (1, 2, 4, 8, 16, 32, 64) if options.full else (1, 4, 16)
    lengths = (10, 20, 50, 100, 200, 500) if options.full else (10, 50, 150)
    prompts = (8, 30, 100, 300, 1000) if options.full else (8, 100, 1000)

    found = {n: _one(embedding(sampler, constraints, n, SHORT, 8), rounds) for n in many}
    report.table(
        "Chains", ["chains", *_COLUMNS], [[n, *_numbers(t, n)] for n, t in found.items()], f"length {SHORT}, prompt 8"
    )
    sizes = [(n, SHORT, timing.memory) for n, timing in found.items()]

    found = {n: _one(embedding(sampler, constraints, FEW, SHORT, n), rounds) for n in prompts}
    report.table(
        "Prompt", ["prompt", *_COLUMNS], [[n, *_numbers(t, FEW)] for n, t in found.items()], f"{FEW} chains of {SHORT}"
    )
    _lengths(report, sampler, constraints, lengths, rounds, sizes, weights)
    report.write()


_COLUMNS = ("s per step", "s per chain-step", "memory MiB")


def _lengths(
    report: Report,
    sampler: Sampler,
    constraints: list[Constraint],
    lengths: Sequence[int],
    rounds: int,
    sizes: list[tuple[int, int, int]],
    weights: int,
) -> None:
    """Embeddings against the simplex, and what fits into which memory."""
    rows, simplex_sizes = [], []
    for length in lengths:
        both = interleaved(
            {
                "embeddings": embedding(sampler, constraints, FEW, length, 8),
                "simplex": simplex(sampler, constraints, FEW, length),
            },
            rounds,
        )
        ours, theirs = both["embeddings"], both["simplex"]
        memory = [round(timing.memory / MIB) for timing in (ours, theirs)]
        rows.append([length, ours.median, theirs.median, ratio(theirs, ours), *memory, memory[1] / max(1, memory[0])])
        sizes.append((FEW, length, ours.memory))
        simplex_sizes.append((FEW, length, theirs.memory))
    columns = ["length", "embeddings s", "simplex s", "ratio", "embeddings MiB", "simplex MiB", "ratio of memory"]
    report.table("Length", columns, rows, f"{FEW} chains, prompt 8; a step of all chains")
    _plot(rows, report.options.output / "growth.svg")
    fits = {"embeddings": fit(sizes), "simplex": fit(simplex_sizes)}
    report.table(
        "Memory of a step",
        ["", "fixed MiB", "KiB per token", "bytes per pair of tokens"],
        [[name, a / MIB, b / 1024, c] for name, (a, b, c) in fits.items()],
        f"models and program take {weights / MIB:,.0f} MiB besides",
    )
    columns = ["memory GiB", *(f"{name}, {n} chains" for name in fits for n in (1, FEW, 25))]
    report.table(
        "Longest text",
        columns,
        [[g, *(longest(g * 2**30 - weights, n, f) for f in fits.values() for n in (1, FEW, 25))] for g in BUDGETS_GIB],
        "from the slopes, roughly unless --full; the model reads at most 8,192 tokens, the classifier 511",
    )


def _plot(rows: Sequence[Sequence[Any]], path: Path) -> None:
    """Time and memory against length, as a picture beside the JSON file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    lengths = [row[0] for row in rows]
    panels = zip(figure.subplots(1, 2), ((1, 2, "seconds of a step"), (4, 5, "MiB of a step")), strict=True)
    for axes, (ours, theirs, label) in panels:
        axes.plot(lengths, [row[ours] for row in rows], marker="o", label="embeddings")
        axes.plot(lengths, [row[theirs] for row in rows], marker="s", linestyle="--", label="vocabulary simplex")
        axes.set(xlabel=f"length in tokens, {FEW} chains", ylabel=label, xlim=0, ylim=0)
        axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def embedding(sampler: Sampler, constraints: list[Constraint], count: int, length: int, prompt: int) -> Work:
    """Our step."""
    return stepping(chains(sampler.language_model, count, prompt, constraints), sampler.dynamics, 1, length)


def simplex(sampler: Sampler, constraints: list[Constraint], count: int, length: int) -> Work:
    """A step of the ablation, from logits in which one token a place stands out."""
    language_model = sampler.language_model
    prompt = Prompt("p", tuple(random_tokens(language_model, 1, 8)[0].tolist()), "p")
    requests = [Request(prompt, length, constraints, index) for index in range(count)]
    streams = [torch.Generator().manual_seed(index) for index in range(count)]
    tokens = random_tokens(language_model, count, length)

    class FromTokens(SimplexLangevin):
        def start(self, *_: object) -> Tensor:
            logits = torch.zeros(count, length, len(language_model.table))
            return logits.scatter_(2, tokens[..., None], 10.0)

    method = FromTokens(steps=1, batch_size=count)
    return lambda: method.descend(language_model, requests, streams)


def fit(sizes: Sequence[tuple[int, int, int]]) -> tuple[float, float, float]:
    """Least squares with non-negative ``fixed``, ``per token`` and ``per pair`` to (chains, length, bytes)."""
    design = torch.tensor([[1.0, n * length, n * length**2] for n, length, _ in sizes], dtype=torch.float64)
    memory = torch.tensor([float(size) for _, _, size in sizes], dtype=torch.float64)
    weights = 1 / memory.clamp(min=MIB)  # relative errors: small sizes count as much as large ones
    columns = [0, 1, 2]
    while True:
        chosen = design[:, columns] * weights[:, None]
        found = torch.linalg.lstsq(chosen, (memory * weights)[:, None]).solution[:, 0]
        if (found >= 0).all() or len(columns) == 1:
            break
        columns = [column for column, value in zip(columns, found.tolist(), strict=True) if value >= 0]
    answer = [0.0, 0.0, 0.0]
    for column, value in zip(columns, found.tolist(), strict=True):
        answer[column] = value
    return answer[0], answer[1], answer[2]


def longest(budget: float, count: int, fitted: tuple[float, float, float]) -> int:
    """The longest text of ``count`` chains whose step takes no more than ``budget`` bytes."""
    fixed, token, pair = fitted
    room = (budget - fixed) / count
    if room <= 0:
        return 0
    if pair == 0:
        return int(room / token)
    return int(((token**2 + 4 * pair * room) ** 0.5 - token) / (2 * pair))


def _one(work: Work, rounds: int) -> Timing:
    return interleaved({"step": work}, rounds)["step"]


def _numbers(timing: Timing, count: int) -> list[object]:
    return [timing.median, timing.median / count, round(timing.memory / MIB)]


if __name__ == "__main__":
    main(Options.given(__doc__))
