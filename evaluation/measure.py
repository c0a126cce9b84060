"""Measuring runs: read prompt by prompt, score, feed the metrics; memory does not grow with the run's texts."""

from __future__ import annotations

import math
import random
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from evaluation.metrics import Estimate, PromptMetric, SampleMean
from evaluation.scorers.base import Scorer
from evaluation.scorers.cache import ScoreCache
from evaluation.scorers.judge import Judge
from evaluation.suites import Columns, Measure, Suite
from mucola.errors import MucolaError
from mucola.generations import IMPORTED, Generation, Run

CHUNK = 64
"""Prompts that are scored together."""
_RECORDED = ("satisfied", "verified", "steps", "evaluations", "seconds")
"""What a sampler tells of a sample; other tools tell nothing, which is no mistake of theirs."""
SHOWN = 200
"""Samples of each kind, worst and random, that a report keeps of a run."""


@dataclass
class Sample:
    """A sample as the report's browser shows it."""

    generation: Generation
    badness: float
    scores: dict[str, float | None]
    prompt_score: float | None
    """The control scorer's view of the prompt, where a bad one is offensive."""


@dataclass
class Measured:
    """Everything a report says of one run."""

    run: Run
    estimates: dict[str, Estimate] = field(default_factory=dict)
    gaps: Counter[str] = field(default_factory=Counter)
    """Samples without a score, by measure."""
    sources: Counter[str] = field(default_factory=Counter)
    by_source: dict[str, dict[str, Estimate]] = field(default_factory=dict)
    """Satisfaction and verification of each source."""
    control: array[float] = field(default_factory=lambda: array("d"))
    perplexities: array[float] = field(default_factory=lambda: array("d"))
    lengths: Counter[int] = field(default_factory=Counter)
    """How many samples have so many tokens."""
    first_of_length: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Prompt and number of the first sample of each length, so that a message can point at it."""
    samples: list[Sample] = field(default_factory=list)
    traces: list[Generation] = field(default_factory=list)
    steered_by: list[str] = field(default_factory=list)
    """Scorers in use that also steered this run."""
    self_judged: bool = False
    """Whether the judge of perplexity is the language model that wrote the samples."""

    @property
    def name(self) -> str:
        return self.run.name


@dataclass
class Judges:
    """The scorers of a suite by the column they fill, and the judge of perplexity."""

    scorers: dict[str, Scorer]
    texts: dict[str, str]
    judge: Judge | None
    invert: bool
    """Whether sentiment scores count the other way round, for a negative target."""


def measure_run(
    run: Run,
    suite: Suite,
    judges: Judges,
    cache: ScoreCache,
    samples: int | None = None,
    allow_gaps: bool = False,
    advance: Callable[[int], object] = lambda count: None,
) -> Measured:
    """All estimates of one run. ``samples`` uses the first so many of each prompt."""
    measured = Measured(run, steered_by=_steered_by(run, judges), self_judged=_self_judged(run, judges))
    active = {measure.key: measure.make() for measure in suite.measures}
    filled: set[str] = set()
    per_source: dict[str, dict[str, PromptMetric]] = defaultdict(
        lambda: {name: SampleMean(name) for name in ("satisfied", "verified")}
    )
    shelf = _Shelf()
    for groups in _chunks(run, samples):
        prompts = _prompt_scores(groups, suite, judges, cache)
        tables = _columns(groups, judges, cache, advance)
        for group, columns, prompt_score in zip(groups, tables, prompts, strict=True):
            if suite.control_column not in columns:
                columns["missing"] = [suite.badness(columns, index) for index in range(len(group))]
            for measure in suite.measures:
                if _feed(measure, active[measure.key], columns, measured, run, group, allow_gaps):
                    filled.add(measure.key)
            _feed_sources(group, per_source)
            _collect(measured, suite, group, columns, prompt_score, shelf)
    for measure in suite.measures:
        if measure.key in filled:
            context = {**measure.context, **_names(measure, judges), "length": _span(measured.lengths)}
            measured.estimates[measure.key] = active[measure.key].estimate(context)
    measured.by_source = {
        source: {name: metric.estimate({"source": source}) for name, metric in pair.items() if metric.update_called}
        for source, pair in sorted(per_source.items())
    }
    measured.samples = shelf.contents()
    return measured


class _Shelf:
    """The worst samples and a random draw of the others, of a stream of any length."""

    def __init__(self) -> None:
        self._worst: list[Sample] = []
        self._drawn: list[Sample] = []
        self._seen = 0
        self._random = random.Random(0)

    def put(self, sample: Sample) -> None:
        self._worst.append(sample)
        if len(self._worst) >= 4 * SHOWN:
            self._trim()
        self._seen += 1
        if len(self._drawn) < SHOWN:
            self._drawn.append(sample)
        elif (place := self._random.randrange(self._seen)) < SHOWN:
            self._drawn[place] = sample

    def contents(self) -> list[Sample]:
        self._trim()
        kept = {(s.generation.prompt_id, s.generation.sample): s for s in [*self._worst, *self._drawn]}
        return sorted(kept.values(), key=lambda sample: -sample.badness)

    def _trim(self) -> None:
        self._worst = sorted(self._worst, key=lambda sample: -sample.badness)[:SHOWN]


def _chunks(run: Run, samples: int | None) -> Iterator[list[list[Generation]]]:
    groups, unasked = iter(run), run.info.get("constraints") == []
    while chunk := [group[:samples] for group in islice(groups, CHUNK)]:
        for generation in chain.from_iterable(chunk):
            if unasked and not generation.values:  # that all of no constraints hold says nothing
                generation.satisfied = generation.verified = None
        yield chunk


def _prompt_scores(
    groups: Sequence[Sequence[Generation]], suite: Suite, judges: Judges, cache: ScoreCache
) -> list[float | None]:
    if not suite.hides:
        return [None] * len(groups)
    return cache.scores(judges.scorers[suite.control_column], [group[0].prompt for group in groups])


def _columns(
    groups: Sequence[Sequence[Generation]], judges: Judges, cache: ScoreCache, advance: Callable[[int], object]
) -> list[dict[str, list[Any]]]:
    """For each prompt its samples' records and scores, as columns."""
    flat = [generation for group in groups for generation in group]
    scored: dict[str, list[Any]] = {}
    for column, scorer in judges.scorers.items():
        whole = judges.texts[column] == "prompt+continuation"
        scores = cache.scores(scorer, [g.prompt + g.text if whole else g.text for g in flat], advance)
        if judges.invert and column.startswith("sentiment:"):
            scores = [None if score is None else 1 - score for score in scores]
        scored[column] = scores
    if judges.judge:
        answers = cache.scores(judges.judge, [(g.prompt, g.text) for g in flat], advance)
        scored["nats"] = [answer and answer[0] for answer in answers]
        scored["judged"] = [answer and answer[1] for answer in answers]
    recorded = ("text", *_RECORDED, "terms", "reference")
    tables, start = [], 0
    for group in groups:
        stop = start + len(group)
        table: dict[str, list[Any]] = {column: values[start:stop] for column, values in scored.items()}
        table.update({name: [getattr(g, name) for g in group] for name in recorded})
        table["keywords"] = [g.keywords or None for g in group]  # no keywords, no coverage
        table["source"] = [None if g.source == IMPORTED else g.source for g in group]
        tables.append(table)
        start = stop
    return tables


def _feed(
    measure: Measure,
    metric: PromptMetric,
    columns: Columns,
    measured: Measured,
    run: Run,
    group: Sequence[Generation],
    allow_gaps: bool,
) -> bool:
    """Give a prompt to a metric, without the samples that lack what it needs; these are counted."""
    if any(name not in columns for name in measure.needs):
        return False  # no scorer was asked for
    needed = [columns[name] for name in measure.needs]
    kept = [index for index, entries in enumerate(zip(*needed, strict=True)) if None not in entries]
    if len(kept) < len(group):
        index = next(index for index in range(len(group)) if index not in kept)
        _note_gap(measure, measured, run, group[index], len(group) - len(kept), allow_gaps)
    if not kept or (measure.key == "self_bleu" and len(kept) < 2):
        return False
    metric.update(*([column[index] for index in kept] for column in needed))
    return True


def _note_gap(
    measure: Measure, measured: Measured, run: Run, generation: Generation, count: int, allow_gaps: bool
) -> None:
    measured.gaps[measure.key] += count
    if allow_gaps or {*_RECORDED, "source"} & set(measure.needs):
        return
    what = " and ".join(repr(name) for name in measure.needs if name != "text")
    prompt_id, sample = generation.prompt_id, generation.sample
    raise MucolaError(
        f"{run.where(prompt_id, sample)}: sample {sample} of prompt {prompt_id!r} has no {what}. Put it right, "
        "or count such samples as gaps with --allow_gaps."
    )


def _feed_sources(group: Sequence[Generation], per_source: dict[str, dict[str, PromptMetric]]) -> None:
    by_source: dict[str, list[Generation]] = defaultdict(list)
    for generation in group:
        by_source[generation.source].append(generation)
    for source, members in by_source.items():
        for name, metric in per_source[source].items():
            known = [flag for flag in (getattr(g, name) for g in members) if flag is not None]
            if known:
                metric.update(known)


def _collect(
    measured: Measured,
    suite: Suite,
    group: Sequence[Generation],
    columns: dict[str, list[Any]],
    prompt_score: float | None,
    shelf: _Shelf,
) -> None:
    for index, generation in enumerate(group):
        measured.sources[generation.source] += 1
        if generation.tokens is not None:
            length = len(generation.tokens)
            measured.lengths[length] += 1
            measured.first_of_length.setdefault(length, (generation.prompt_id, generation.sample))
        value = columns[suite.control_column][index]
        if value is not None:
            measured.control.append(value)
        if "nats" in columns and columns["nats"][index] is not None:
            measured.perplexities.append(math.exp(columns["nats"][index] / columns["judged"][index]))
        if generation.trace:
            measured.traces.append(generation)
        scores = {column: columns[column][index] for column in suite.scored if column in columns}
        shelf.put(Sample(generation, suite.badness(columns, index), scores, prompt_score))


def _names(measure: Measure, judges: Judges) -> dict[str, object]:
    """The exact revision of whoever gave a measure its scores."""
    for column in measure.needs:
        if column in judges.scorers:
            return {"scorer": judges.scorers[column].revision, "text": judges.texts[column]}
        if column == "nats" and judges.judge:
            return {"judge": judges.judge.revision}
    return {}


def _span(lengths: Counter[int]) -> str:
    if not lengths:
        return "unrecorded"
    low, high = min(lengths), max(lengths)
    return str(low) if low == high else f"{low}-{high}"


def _steered_by(run: Run, judges: Judges) -> list[str]:
    """Scorers that appear, by name, folder or fingerprint, among the models that steered the run."""
    told = set(_strings(run.info.get("steered", [])))
    return [scorer.name for scorer in judges.scorers.values() if scorer.identities & told]


def _self_judged(run: Run, judges: Judges) -> bool:
    return judges.judge is not None and judges.judge.name in _strings(run.info.get("models", {}))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for entry in value.values():
            yield from _strings(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _strings(entry)
