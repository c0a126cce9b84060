"""All metrics that need no model, on one core: seconds of the processor, and memory that does not grow with the texts.

    python -m benchmarks metrics

100,000 generations (4,000 prompts, 25 samples of 20 words each) are written to disk and read back as any run is, so
reading and checking are included. A tenth of them shows how memory grows.
"""

from __future__ import annotations

import random
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.bench import MIB, Options, Report, peak_memory
from evaluation.measure import Judges, measure_run
from evaluation.metrics import Estimate
from evaluation.scorers import ScoreCache
from evaluation.suites import SUITES
from evaluation.suites import Options as SuiteOptions
from mucola.generations import Generation, Run, Writer

SAMPLES = 25
WORDS = tuple(start + end for start in "bcdfghjklmnpqrstvwz" for end in ("at", "en", "ilo", "oram", "uster", "y"))


def main(options: Options, generations: int = 100_000) -> None:
    """Measure ``generations`` samples, and a tenth of them."""
    report, rows = Report("metrics", options), []
    for count in (generations // 10, generations):
        with tempfile.TemporaryDirectory() as folder:
            path = _write(Path(folder), count // SAMPLES)
            size = path.stat().st_size
            with peak_memory() as peak:
                clock, seconds = time.perf_counter(), time.process_time()
                found = measure_everything(path, Path(folder))
                seconds, clock = time.process_time() - seconds, time.perf_counter() - clock
        rows.append([count, len(found), seconds, clock, round(size / MIB), round(peak[0] / MIB)])
    columns = ["generations", "metrics", "processor s", "clock s", "file MiB", "memory MiB"]
    report.table("Metrics without models", columns, rows, "with intervals of 1,000 draws each")
    report.write()


def measure_everything(path: Path, folder: Path) -> dict[str, Estimate]:
    """Every measure of the suites that needs no scorer, in one pass."""
    keywords, translation = (SUITES[name](SuiteOptions(name)) for name in ("keywords", "translation"))
    measures = {measure.key: measure for measure in (*keywords.measures, *translation.measures)}
    suite = replace(keywords, measures=tuple(measures.values()))
    cache = ScoreCache(folder / "scores.sqlite")
    try:
        return measure_run(Run(path), suite, Judges({}, {}, None, False), cache).estimates
    finally:
        cache.close()


def _write(folder: Path, prompts: int) -> Path:
    """A run with every field that a sampler fills."""
    draw, path = random.Random(0), folder / "generations.jsonl"
    with Writer(path) as writer:
        for prompt in range(prompts):
            wanted, reference = draw.sample(WORDS, 4), " ".join(draw.choices(WORDS, k=20))
            for sample in range(SAMPLES):
                writer.write(_generation(draw, str(prompt), sample, wanted, reference))
    return path


def _generation(draw: random.Random, prompt_id: str, sample: int, wanted: list[str], reference: str) -> Generation:
    good = draw.random() < 0.9
    return Generation(
        prompt_id=prompt_id,
        prompt=f"Prompt {prompt_id}",
        sample=sample,
        text=" " + " ".join(draw.choices(WORDS, k=18) + draw.sample(wanted, 2)),
        source="langevin" if good else "fallback",
        tokens=draw.choices(range(50_000), k=20),
        satisfied=good,
        verified=good,
        values={"toxic": {"value": draw.uniform(-5, 0), "threshold": -2.0}},
        nll=draw.uniform(20, 80),
        steps=draw.randrange(250),
        evaluations=draw.randrange(250),
        restarts=0,
        seed=0,
        seconds=draw.random(),
        keywords=wanted,
        terms=wanted[:2],
        reference=reference,
    )


if __name__ == "__main__":
    main(Options.given(__doc__))
