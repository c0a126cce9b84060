"""Evaluating runs from beginning to end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from evaluation.comparable import check_comparable
from evaluation.measure import Judges, measure_run
from evaluation.report import Results
from evaluation.scorers import ScoreCache, Scorer, load_scorer
from evaluation.scorers.judge import Judge
from evaluation.suites import NONE, SUITES, Options, Suite
from mucola.errors import MucolaError
from mucola.generations import Run

_UNCONSTRAINED = ("unconstrained", "nucleus")


def evaluate(
    paths: Sequence[str | Path],
    options: Options,
    unconstrained: str | None = None,
    samples: int | None = None,
    allow_gaps: bool = False,
    cache: ScoreCache | None = None,
) -> Results:
    """Measure the runs at ``paths`` with a suite, side by side.

    ``unconstrained`` names the run whose perplexity the others are compared with; without it the run
    whose samples say so is taken, if there is one.
    """
    from evaluation.progress import progress

    if samples is not None and samples < 1:
        raise MucolaError("--samples takes a number of at least 1.")
    runs = [Run(path) for path in paths]
    if not runs:
        raise MucolaError("Give at least one run: a folder or a JSONL file of generations.")
    _name_apart(runs)
    check_comparable(runs, samples)
    suite = SUITES[options.suite](options)
    judges = _judges(suite, options)
    cache = cache or ScoreCache()
    measured = []
    for run in runs:
        size = len(run) if samples is None else samples * len(run.prompts)
        with progress(run.name, size * (len(judges.scorers) + bool(judges.judge))) as advance:
            measured.append(measure_run(run, suite, judges, cache, samples, allow_gaps, advance))
    names = [run.name for run in runs]
    if unconstrained is not None and unconstrained not in names:
        raise MucolaError(f"--unconstrained names none of the runs: {unconstrained!r}; they are {', '.join(names)}.")
    if unconstrained is None:
        unconstrained = next((m.name for m in measured if set(m.sources) <= set(_UNCONSTRAINED)), None)
    return Results(options, suite, measured, judges, unconstrained)


def _name_apart(runs: Sequence[Run]) -> None:
    """Runs of the same name get their parent folder's in front, until all differ."""
    repeated = Counter(run.name for run in runs)
    for run in runs:
        if repeated[run.name] > 1:
            run.name = f"{run.path.resolve().parent.name}/{run.name}"
    if len({run.name for run in runs}) < len(runs):
        raise MucolaError("Two of the runs are the same, or have the same name; rename one.")


def _judges(suite: Suite, options: Options) -> Judges:
    made: dict[str, Scorer] = {}
    scorers: dict[str, Scorer] = {}
    for column, (name, _) in suite.scored.items():
        if name != NONE:
            scorers[column] = made.setdefault(name, made.get(name) or load_scorer(name))
    wants_judge = any("nats" in measure.needs for measure in suite.measures) and options.judge != NONE
    return Judges(
        scorers=scorers,
        texts={column: text for column, (_, text) in suite.scored.items()},
        judge=Judge(options.judge) if wants_judge else None,
        invert=options.target == "negative",
    )
