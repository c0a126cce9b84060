"""What is measured for which task, in the order of the paper's tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from evaluation import metrics
from evaluation.metrics import PromptMetric
from mucola.errors import MucolaError
from mucola.names import unknown

NONE = "none"
"""The name that switches the grammar scorer or the judge off."""
SAMPLER = "Sampler"
"""The group of columns about how the samples were made."""
Better = Literal["higher", "lower", "closest", ""]
Columns = Mapping[str, Sequence[Any]]
"""Of one prompt: an entry per sample under each name, None where it is not known."""


@dataclass(frozen=True)
class Measure:
    """A metric with its place in the table and the columns of a sample it is computed from."""

    key: str
    title: str
    group: str
    make: Callable[[], PromptMetric]
    needs: tuple[str, ...]
    better: Better = ""
    percent: bool = False
    context: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Options:
    """What a user chooses; each suite uses its part."""

    suite: str
    toxicity: str = "ngrams-toxicity"
    sentiment: tuple[str, ...] = ("ngrams-sst2", "ngrams-yelp", "ngrams-imdb")
    grammar: str = "grammar"
    judge: str = "smollm2-135m"
    target: str = "positive"
    inflected: bool = False

    def __post_init__(self) -> None:
        if self.suite not in SUITES:
            raise unknown("suite", self.suite, SUITES)
        if self.target not in ("positive", "negative"):
            raise MucolaError(f"The target sentiment is 'positive' or 'negative', not {self.target!r}.")
        if self.toxicity == NONE or NONE in self.sentiment or not self.sentiment:
            raise MucolaError("A control number needs its scorer; only grammar and judge can be `none`.")


@dataclass(frozen=True)
class Suite:
    """The measures of a task.

    ``scored`` maps the column a scorer fills to the scorer's name and to the text it reads:
    the continuation alone, or prompt and continuation. ``control`` is the measure that stands
    for the task in plots; ``badness`` orders samples, worst first.
    """

    measures: tuple[Measure, ...]
    scored: Mapping[str, tuple[str, Literal["continuation", "prompt+continuation"]]]
    control: str
    control_column: str
    control_axis: str
    """What `control_column` holds, in words."""
    badness: Callable[[Columns, int], float]
    hides: bool = False
    """Whether bad samples are offensive, so that a report shows them only when asked to."""


def _distinct(n: int) -> Measure:
    return Measure(f"dist_{n}", f"dist-{n}", "Diversity", lambda: metrics.Distinct(n), ("text",), "higher")


_PERPLEXITY = (
    Measure("perplexity", "Perplexity", "Fluency", metrics.MeanPerplexity, ("nats", "judged"), "closest"),
    Measure("corpus_perplexity", "Corpus ppl", "Fluency", metrics.CorpusPerplexity, ("nats", "judged"), "closest"),
)
_GRAMMAR = Measure("grammar", "Grammatical", "Fluency", metrics.Grammaticality, ("grammar",), "higher", True)
_REPETITION = Measure("repetition", "Repetition", "Diversity", metrics.RepetitionRate, ("text",), "lower", True)
_DIVERSITY = (
    *map(_distinct, (1, 2, 3)),
    _REPETITION,
    Measure("self_bleu", "self-BLEU", "Diversity", metrics.SelfBLEU, ("text",), "lower"),
)


def _recorded(key: str, title: str, better: Better, percent: bool = False) -> Measure:
    """A mean of what the sampler recorded of each sample."""
    return Measure(key, title, SAMPLER, lambda: metrics.SampleMean(key), (key,), better, percent)


_PROCESS = (
    _recorded("satisfied", "Satisfied", "higher", True),
    _recorded("verified", "Verified", "higher", True),
    Measure("fallback", "Fallback", SAMPLER, metrics.FallbackRate, ("source",), "lower", True),
    _recorded("steps", "Steps", "lower"),
    _recorded("evaluations", "Evaluations", "lower"),
    _recorded("seconds", "Seconds", "lower"),
)


def _toxicity(options: Options) -> Suite:
    return Suite(
        measures=(
            Measure(
                "max_toxicity",
                "Avg. max. toxicity",
                "Control",
                metrics.AverageMaximumToxicity,
                ("toxicity",),
                "lower",
            ),
            Measure(
                "toxicity_probability",
                "Toxicity prob.",
                "Control",
                metrics.ToxicityProbability,
                ("toxicity",),
                "lower",
            ),
            *_PERPLEXITY,
            _GRAMMAR,
            *_DIVERSITY,
            *_PROCESS,
        ),
        scored={
            "toxicity": (options.toxicity, "continuation"),
            "grammar": (options.grammar, "prompt+continuation"),
        },
        control="max_toxicity",
        control_column="toxicity",
        control_axis="toxicity of a sample",
        badness=lambda columns, index: _known(columns["toxicity"][index]),
        hides=True,
    )


def _sentiment(options: Options) -> Suite:
    names = [f"sentiment:{scorer}" for scorer in options.sentiment]

    def badness(columns: Columns, index: int) -> float:
        return 1 - math.fsum(_known(columns[name][index]) for name in names) / len(names)

    return Suite(
        measures=(
            *(
                Measure(
                    name.replace("sentiment:", "accuracy:"),
                    f"% {options.target} ({scorer})",
                    "Control",
                    metrics.SentimentAccuracy,
                    (name,),
                    "higher",
                    True,
                    {"target": options.target},
                )
                for name, scorer in zip(names, options.sentiment, strict=True)
            ),
            *_PERPLEXITY,
            _GRAMMAR,
            *_DIVERSITY,
            *_PROCESS,
        ),
        scored={
            **{name: (scorer, "prompt+continuation") for name, scorer in zip(names, options.sentiment, strict=True)},
            "grammar": (options.grammar, "prompt+continuation"),
        },
        control=f"accuracy:{options.sentiment[0]}",
        control_column=names[0],
        control_axis=f"probability of {options.target} ({options.sentiment[0]})",
        badness=badness,
    )


def _keywords(options: Options) -> Suite:
    def missing(columns: Columns, index: int) -> float:
        wanted = columns["keywords"][index] or []
        return float(sum(not metrics.covers(columns["text"][index], word, options.inflected) for word in wanted))

    return Suite(
        measures=(
            Measure(
                "keyword_count",
                "Count",
                "Coverage",
                lambda: metrics.KeywordCount(options.inflected),
                ("text", "keywords"),
                "higher",
            ),
            Measure(
                "keyword_coverage",
                "% with all",
                "Coverage",
                lambda: metrics.KeywordCoverage(options.inflected),
                ("text", "keywords"),
                "higher",
                True,
            ),
            *_PERPLEXITY,
            _GRAMMAR,
            *_DIVERSITY,
            *_PROCESS,
        ),
        scored={"grammar": (options.grammar, "prompt+continuation")},
        control="keyword_coverage",
        control_column="missing",
        control_axis="wanted words that are missing in a sample",
        badness=missing,
    )


def _translation(options: Options) -> Suite:
    def missing(columns: Columns, index: int) -> float:
        wanted = columns["terms"][index] or []
        return float(sum(not metrics.covers(columns["text"][index], term) for term in wanted))

    return Suite(
        measures=(
            Measure("bleu", "BLEU", "Translation", metrics.BLEU, ("text", "reference"), "higher"),
            Measure(
                "term_coverage",
                "% terms used",
                "Translation",
                metrics.TerminologyCoverage,
                ("text", "terms"),
                "higher",
                True,
            ),
            _REPETITION,
            *_PROCESS,
        ),
        scored={},
        control="term_coverage",
        control_column="missing",
        control_axis="wanted words that are missing in a sample",
        badness=missing,
    )


SUITES: Mapping[str, Callable[[Options], Suite]] = {
    "toxicity": _toxicity,
    "sentiment": _sentiment,
    "keywords": _keywords,
    "translation": _translation,
}


def _known(score: float | None) -> float:
    """A gap sorts behind everything that was scored."""
    return -math.inf if score is None else score
