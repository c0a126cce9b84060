"""Metrics: each a pure function over prompts and a thin torchmetrics class, with intervals and signatures."""

from evaluation.metrics.base import Estimate, PromptMetric
from evaluation.metrics.control import (
    AttributeShare,
    AverageMaximumToxicity,
    Grammaticality,
    SentimentAccuracy,
    ToxicityProbability,
    attribute_share,
    average_maximum_toxicity,
    toxicity_probability,
)
from evaluation.metrics.coverage import (
    KeywordCount,
    KeywordCoverage,
    TerminologyCoverage,
    covers,
    inflections,
    keyword_count,
    keyword_coverage,
    terminology_coverage,
)
from evaluation.metrics.diversity import (
    Distinct,
    RepetitionRate,
    SelfBLEU,
    distinct,
    ends_in_repetition,
    repetition_rate,
    self_bleu,
)
from evaluation.metrics.fluency import CorpusPerplexity, MeanPerplexity, corpus_perplexity, mean_perplexity
from evaluation.metrics.process import (
    FallbackRate,
    SampleMean,
    fallback_rate,
    sample_mean,
)
from evaluation.metrics.translation import BLEU, bleu

__all__ = [
    "BLEU",
    "AttributeShare",
    "AverageMaximumToxicity",
    "CorpusPerplexity",
    "Distinct",
    "Estimate",
    "FallbackRate",
    "Grammaticality",
    "KeywordCount",
    "KeywordCoverage",
    "MeanPerplexity",
    "PromptMetric",
    "RepetitionRate",
    "SampleMean",
    "SelfBLEU",
    "SentimentAccuracy",
    "TerminologyCoverage",
    "ToxicityProbability",
    "attribute_share",
    "average_maximum_toxicity",
    "bleu",
    "corpus_perplexity",
    "covers",
    "distinct",
    "ends_in_repetition",
    "fallback_rate",
    "inflections",
    "keyword_count",
    "keyword_coverage",
    "mean_perplexity",
    "repetition_rate",
    "sample_mean",
    "self_bleu",
    "terminology_coverage",
    "toxicity_probability",
]
