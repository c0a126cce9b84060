"""Quality of the sampler on SmolLM2-135M: unconstrained chains, keywords, and the prompt constraint.

    python -m benchmarks.sampler unconstrained --prompts prompts.jsonl
    python -m benchmarks.sampler keywords --sets commongen.jsonl
    python -m benchmarks.sampler prompt --prompts prompts.jsonl --mode faithful

Each prints every text with its numbers, then a summary line of JSON.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from jsonargparse import auto_cli

import mucola
from mucola.constraints import exclude, keyword, parse_all
from mucola.constraints.words import appears
from mucola.pool import Request
from mucola.prompts import Prompt
from mucola.proposals import draw
from mucola.randomness import stream
from mucola.sampler import Sample, Sampler
from mucola.settings import Mode, Settings

MODEL = "smollm2-135m"


def unconstrained(
    prompts: Path, chains: int = 4, length: int = 12, steps: int = 200, seed: int = 0, threads: int = 1
) -> None:
    """`faithful` chains from random tokens against nucleus samples of the same prompts."""
    torch.set_num_threads(threads)
    sampler = mucola.load(MODEL, Settings(mode="faithful", steps=steps))
    requests = _requests(sampler, _read_prompts(prompts), chains, length)
    nucleus = draw(
        sampler.language_model,
        requests,
        [torch.rand(length, generator=stream(seed, item.prompt.id, item.sample, "nucleus")) for item in requests],
        sampler.settings.nucleus,
    )
    samples = _run(sampler, requests, seed)
    plain = statistics.median(item.nll / length for item in nucleus)
    found = [item.nll / length for item in samples if item.nll is not None]
    _summary(
        median_nll_per_token=statistics.median(found),
        nucleus_median_nll_per_token=plain,
        difference=statistics.median(found) - plain,
        without_fallback=_share(item.source == "langevin" for item in samples),
        distinct_outputs=len({item.text for item in samples}) / len(samples),
        dist=[round(_distinct([item.text for item in samples], n), 3) for n in (1, 2, 3)],
        nucleus_dist=[round(_distinct([item.text for item in nucleus], n), 3) for n in (1, 2, 3)],
        **_work(samples),
    )


def keywords(
    sets: Path,
    count: int = 50,
    length: int = 20,
    restarts: int = 3,
    steps: int = 200,
    mode: Mode = "fast",
    seed: int = 0,
    threads: int = 1,
) -> None:
    """CommonGen concept sets of four or five different words, all of which must be in the final text.

    As in the authors' code, the text is one line: newlines are excluded.
    """
    torch.set_num_threads(threads)
    sampler = mucola.load(MODEL, Settings(mode=mode, restarts=restarts, steps=steps))
    words = [json.loads(line)["concept_set"].split("#") for line in sets.read_text(encoding="utf-8").splitlines()]
    chosen = [row for row in words if len(set(row)) == len(row) and len(row) >= 4][:count]
    requests, one_line = [], exclude("\n")
    for number, row in enumerate(chosen):
        prompt = Prompt.of("", sampler.language_model, id=f"set-{number}")
        requests.append(Request(prompt, length, [*(keyword(word) for word in row), one_line]))
    samples = _run(sampler, requests, seed)
    covered = [
        [appears([word], "", sample.text) for word in chosen[int(sample.prompt_id.split("-")[1])]] for sample in samples
    ]
    _summary(
        all_words=_share(all(row) and item.source != "fallback" for row, item in zip(covered, samples, strict=True)),
        words_covered=statistics.mean(sum(row) / len(row) for row in covered),
        sources={source: sum(item.source == source for item in samples) for source in {s.source for s in samples}},
        median_nll_per_token=statistics.median((item.nll or math.nan) / length for item in samples),
        **_work(samples),
    )


def prompt(
    prompts: Path,
    chains: int = 4,
    length: int = 12,
    steps: int = 200,
    mode: Mode = "fast",
    constraint: str = 'prompt("This is amazing", "This is terrible")',
    seed: int = 0,
    threads: int = 1,
) -> None:
    """One soft constraint over the prompts, against nucleus samples of the same prompts."""
    torch.set_num_threads(threads)
    sampler = mucola.load(MODEL, Settings(mode=mode, steps=steps))
    requests = _requests(sampler, _read_prompts(prompts), chains, length, [constraint])
    samples = _run(sampler, requests, seed)
    uniforms = [torch.rand(length, generator=stream(seed, item.prompt.id, item.sample, "plain")) for item in requests]
    plain = draw(sampler.language_model, requests, uniforms, sampler.settings.nucleus)
    ratio = math.exp(
        statistics.median((item.nll or math.nan) / length for item in samples)
        - statistics.median(item.nll / length for item in plain)
    )
    _summary(
        verified=_share(bool(item.verified) for item in samples),
        verified_plain=_share(item.verified for item in plain),
        perplexity_ratio_of_medians=ratio,
        sources={source: sum(item.source == source for item in samples) for source in {s.source for s in samples}},
        distinct_outputs=len({item.text for item in samples}) / len(samples),
        **_work(samples),
    )


def _read_prompts(path: Path) -> list[str]:
    return [json.loads(line)["prompt"]["text"] for line in path.read_text(encoding="utf-8").splitlines()]


def _requests(
    sampler: Sampler, prompts: Sequence[str], chains: int, length: int, constraints: Iterable[str] = ()
) -> list[Request]:
    made = parse_all(constraints)
    for item in made:
        item.prepare(sampler.language_model)
    starts = [Prompt.of(text, sampler.language_model) for text in prompts]
    return [Request(start, length, made, index) for start in starts for index in range(chains)]


def _run(sampler: Sampler, requests: Sequence[Request], seed: int) -> list[Sample]:
    started, done = time.perf_counter(), []
    for sample in sampler.run(requests, seed):
        done.append(sample)
        rate = (sample.nll or math.nan) / len(sample.tokens or [0])
        work = f"{sample.steps:4d} {sample.evaluations:4d}"
        facts = f"{sample.source:9s} {'ok' if sample.verified else '--'} {rate:5.2f} {work}"
        print(f"[{time.perf_counter() - started:6.0f} s] {facts} {sample.prompt}|{sample.text!r}", flush=True)
    return done


def _work(samples: Sequence[Sample]) -> dict[str, float]:
    chains = [item for item in samples if item.steps]
    steps, evaluations = (sum(getattr(item, name) or 0 for item in chains) for name in ("steps", "evaluations"))
    return {
        "chains": len(chains),
        "mean_steps": steps / max(1, len(chains)),
        "evaluations_per_step": evaluations / max(1, steps),
        "mean_seconds": statistics.mean(item.seconds or 0.0 for item in samples),
    }


def _distinct(texts: Sequence[str], n: int) -> float:
    grams = [
        tuple(words[i : i + n]) for words in (re.findall(r"\S+", t) for t in texts) for i in range(len(words) - n + 1)
    ]
    return len(set(grams)) / max(1, len(grams))


def _share(flags: Iterable[bool]) -> float:
    return statistics.mean(map(float, flags))


def _summary(**facts: object) -> None:
    rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in facts.items()}
    print(json.dumps(rounded))


if __name__ == "__main__":
    auto_cli([unconstrained, keywords, prompt], as_positional=False, args=sys.argv[1:])
