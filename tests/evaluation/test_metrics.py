"""Every metric against a hand-made example and, where there is one, a second library."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch
import torch.distributed
import torch.multiprocessing
from scipy.stats import spearmanr
from sklearn.metrics import accuracy_score, matthews_corrcoef, recall_score, roc_auc_score

from evaluation import metrics
from evaluation.agreement import auc, matthews, rank_correlation

WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "big", "red", "fox", "and", "then", "it", "was", "so"]


def texts(prompts: int, samples: int, seed: int = 0) -> list[list[str]]:
    draw = random.Random(seed)
    return [[" ".join(draw.choices(WORDS, k=draw.randint(2, 14))) for _ in range(samples)] for _ in range(prompts)]


def scores(prompts: int, samples: int, seed: int = 0) -> list[list[float]]:
    draw = random.Random(seed)
    return [[draw.random() for _ in range(samples)] for _ in range(prompts)]


def filled(metric: metrics.PromptMetric, columns: list[tuple[Any, ...]]) -> metrics.PromptMetric:
    for prompt in columns:
        metric.update(*prompt)
    return metric


def cases() -> list[tuple[str, metrics.PromptMetric, list[tuple[Any, ...]], float]]:
    """(name, class, prompts, the pure function's value): the class must agree with the function."""
    s, t = scores(30, 5), texts(30, 5)
    flags = [[score > 0.3 for score in prompt] for prompt in s]
    sources = [[("fallback", "langevin", "ancestral")[int(score * 3)] for score in prompt] for prompt in s]
    nats = [([score * 60 for score in prompt], [1 + int(score * 20) for score in prompt]) for prompt in s]
    wanted = [(prompt, [["dog", "big red"]] * 5) for prompt in t]
    pairs = list(zip(t, texts(30, 5, seed=1), strict=True))
    one: list[tuple[Any, ...]] = [(prompt,) for prompt in s]
    words: list[tuple[Any, ...]] = [(prompt,) for prompt in t]
    return [
        ("maximum", metrics.AverageMaximumToxicity(), one, metrics.average_maximum_toxicity(s)),
        ("probability", metrics.ToxicityProbability(0.9), one, metrics.toxicity_probability(s, 0.9)),
        ("sentiment", metrics.SentimentAccuracy(), one, metrics.attribute_share(s)),
        ("grammar", metrics.Grammaticality(), one, metrics.attribute_share(s)),
        ("mean perplexity", metrics.MeanPerplexity(), nats, metrics.mean_perplexity(nats)),
        ("corpus perplexity", metrics.CorpusPerplexity(), nats, metrics.corpus_perplexity(nats)),
        *[(f"dist-{n}", metrics.Distinct(n), words, metrics.distinct(t, n)) for n in (1, 2, 3)],
        ("repetition", metrics.RepetitionRate(), words, metrics.repetition_rate(t)),
        ("self-BLEU", metrics.SelfBLEU(), words, metrics.self_bleu(t)),
        ("keyword count", metrics.KeywordCount(), wanted, metrics.keyword_count(wanted)),
        ("keyword coverage", metrics.KeywordCoverage(), wanted, metrics.keyword_coverage(wanted)),
        ("terms", metrics.TerminologyCoverage(), wanted, metrics.terminology_coverage(wanted)),
        ("BLEU", metrics.BLEU(), pairs, metrics.bleu(pairs)),
        ("satisfied", metrics.SampleMean("satisfied"), [(prompt,) for prompt in flags], metrics.sample_mean(flags)),
        ("fallback", metrics.FallbackRate(), [(prompt,) for prompt in sources], metrics.fallback_rate(sources)),
        ("seconds", metrics.SampleMean("seconds"), one, metrics.sample_mean(s)),
    ]


@pytest.mark.parametrize("case", cases(), ids=lambda case: case[0])
def test_class_and_function_agree_and_have_an_interval(case: Any) -> None:
    _, metric, prompts, expected = case
    filled(metric, prompts)
    assert metric.compute().item() == pytest.approx(expected, rel=1e-12)
    estimate = metric.estimate({"scorer": "someone"})
    assert estimate.value == pytest.approx(expected, rel=1e-12)
    assert estimate.low <= estimate.value <= estimate.high
    assert (estimate.prompts, estimate.samples) == (30, 150)
    assert estimate.signature.startswith(f"{metric.name}|k:5|prompts:30")
    assert "|scorer:someone|" in estimate.signature
    assert "\n" not in estimate.signature


def test_toxicity_by_hand() -> None:
    prompts = [[0.2, 0.6], [0.5, 0.1], [0.9, 0.8]]
    assert metrics.average_maximum_toxicity(prompts) == pytest.approx((0.6 + 0.5 + 0.9) / 3)
    assert metrics.toxicity_probability(prompts) == pytest.approx(2 / 3)  # 0.5 is not above 0.5
    tensor = torch.tensor(prompts, dtype=torch.float64)
    assert metrics.average_maximum_toxicity(prompts) == pytest.approx(tensor.amax(1).mean().item())


def test_attribute_share_is_scikit_learns_recall_when_everything_should_have_it() -> None:
    prompts = scores(20, 4)
    predicted = [score > 0.5 for prompt in prompts for score in prompt]
    assert metrics.attribute_share(prompts) == pytest.approx(recall_score([True] * 80, predicted))
    assert metrics.attribute_share(prompts) == pytest.approx(accuracy_score([True] * 80, predicted))


def test_perplexity_by_hand() -> None:
    prompts = [([2.0, 6.0], [1, 2]), ([1.0], [4])]
    by_sample = [math.exp(2.0), math.exp(3.0), math.exp(0.25)]
    assert metrics.mean_perplexity(prompts) == pytest.approx(sum(by_sample) / 3)
    assert metrics.corpus_perplexity(prompts) == pytest.approx(math.exp(9.0 / 7))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_distinct_against_a_plain_count(n: int) -> None:
    prompts = texts(10, 4)
    per_prompt = []
    for samples in prompts:
        padded = " | ".join(samples)  # a second way: n-grams of the joined text that do not cross a bar
        words = padded.split()
        grams = {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}
        per_prompt.append(len([g for g in grams if "|" not in g]) / len([w for w in words if w != "|"]))
    assert metrics.distinct(prompts, n) == pytest.approx(sum(per_prompt) / 10)


def test_self_bleu_is_sacrebleu_against_the_other_samples() -> None:
    prompts = [*texts(6, 5), ["a b c", "x y z"], ["the cat", "the cat"], ["same words here", "same words here"]]
    prompts += [["", "a b c d", "a a a b"], ["", ""], ["so so so so", "so so so", "so so and so so"]]
    expected = [
        sacrebleu.sentence_bleu(text, samples[:i] + samples[i + 1 :], tokenize="none").score / 100
        for samples in prompts
        for i, text in enumerate(samples)
    ]
    assert metrics.self_bleu(prompts) == pytest.approx(sum(expected) / len(expected), rel=1e-9)


def test_bleu_is_sacrebleu() -> None:
    prompts = list(zip(texts(9, 2), texts(9, 2, seed=4), strict=True))
    prompts += [(["It's 1,000 &amp; more. ", "", "no no no no"], ["It's 1,000 & more!"] * 2 + ["no no"])]
    hypotheses = [text for samples, _ in prompts for text in samples]
    references = [text for _, samples in prompts for text in samples]
    expected = sacrebleu.corpus_bleu(hypotheses, [references]).score
    assert expected > 1
    assert metrics.bleu(prompts) == pytest.approx(expected)
    assert filled(metrics.BLEU(), prompts).compute().item() == pytest.approx(expected)


def test_repetition_by_hand() -> None:
    repeating = ["x is so it is so it", "go on go on go on go on go on go on", "a b c d a b c d"]
    fine = ["so it is", "a b c d a b c", "", "no no no no no"]
    # the phrase "is so it" and the phrase "so it is" end the first; five times "no" hold no phrase of three twice
    assert [metrics.ends_in_repetition(text) for text in repeating] == [True, True, True]
    assert [metrics.ends_in_repetition(text) for text in fine] == [False] * 4


def test_keywords_are_whole_words() -> None:
    text = "The dogs ran; Beach-ball, hot\ndog stand."
    assert metrics.covers(text, "beach")
    assert not metrics.covers(text, "dogs ran beach")
    assert metrics.covers(text, "hot dog")
    assert not metrics.covers(text, "bea")
    assert metrics.covers(text, "stand", inflected=True)
    assert metrics.covers("a C++ book", "C++")
    assert metrics.covers("Größe zählt", "größe")
    prompts = [(["dogs run", "dog runs"], [["dog", "run"], ["dog", "run"]])]
    assert metrics.keyword_count(prompts) == 1.0
    assert metrics.keyword_coverage(prompts) == 0.0
    assert metrics.keyword_count(prompts, inflected=True) == 2.0
    assert metrics.keyword_coverage(prompts, inflected=True) == 1.0


def test_coverage_against_word_sets() -> None:
    prompts = [(samples, [["dog", "fox", "mat"]] * 5) for samples in texts(12, 5)]
    found = [len({"dog", "fox", "mat"} & set(re.findall(r"\w+", text))) for samples, _ in prompts for text in samples]
    assert metrics.keyword_count(prompts) == pytest.approx(sum(found) / 60)
    assert metrics.keyword_coverage(prompts) == pytest.approx(Counter(found)[3] / 60)
    assert metrics.terminology_coverage(prompts) == pytest.approx(sum(found) / 180)
    assert metrics.terminology_coverage([*prompts, (["no term"], [[]])]) == pytest.approx(sum(found) / 180)


def test_the_bootstrap_has_the_right_width() -> None:
    """The interval of a mean of many prompts is the normal one: 1.96 standard errors to each side."""
    draws = torch.randn(2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    estimate = filled(metrics.SampleMean("seconds"), [([draw.item()],) for draw in draws]).estimate()
    assert (estimate.high - estimate.low) / 2 == pytest.approx(1.96 * draws.std().item() / 2000**0.5, rel=0.1)


def test_prompts_not_samples_are_resampled() -> None:
    """Twenty copies of a sample say no more than one: the interval must not shrink."""
    once = filled(metrics.SampleMean("seconds"), [([float(i % 7)],) for i in range(50)]).estimate()
    copied = filled(metrics.SampleMean("seconds"), [([float(i % 7)] * 20,) for i in range(50)]).estimate()
    assert (copied.low, copied.high) == pytest.approx((once.low, once.high))


def test_what_cannot_be_measured_is_an_error() -> None:
    with pytest.raises(ValueError, match="without samples"):
        metrics.AverageMaximumToxicity().update([])
    with pytest.raises(ValueError, match="score is missing"):
        metrics.AverageMaximumToxicity().update([0.2, math.nan])
    with pytest.raises(ValueError, match="differ in length"):
        metrics.MeanPerplexity().update([1.0, 2.0], [1])
    with pytest.raises(ValueError, match="no prompt was added"):
        metrics.Distinct(1).estimate()
    with pytest.raises(ValueError, match="no prompt had a sample"):
        metrics.average_maximum_toxicity([])
    with pytest.raises(ValueError, match="needs two or more"):
        metrics.SelfBLEU().update(["a"])
    with pytest.raises(ValueError, match="no coverage"):
        metrics.keyword_count([(["a"], [[]])])


PROMPTS_OF_TWO = (30, 1)
"""Uneven shares, and a process without any prompt."""


def _measured(rank: int | None) -> list[tuple[float, dict[str, Any]]]:
    answers = []
    for prompts in PROMPTS_OF_TWO:
        for _, metric, columns, _ in cases():
            mine = [c for index, c in enumerate(columns[:prompts]) if rank is None or index % 3 % 2 == rank]
            filled(metric, mine)
            answers.append((metric.compute().item(), vars(metric.estimate())))
    return answers


def _one_of_two(rank: int, folder: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.save(_measured(rank), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_two_processes_give_the_numbers_of_one(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_one_of_two, (str(tmp_path),), nprocs=2)
    expected = _measured(None)
    for rank in (0, 1):
        assert torch.load(tmp_path / f"{rank}.pt", weights_only=True) == expected


def test_agreement_is_scikit_learns_and_scipys() -> None:
    truth = [1, 0, 1, 1, 0, 1, 0, 0, 1, 1]
    probabilities = [0.9, 0.4, 0.8, 0.3, 0.6, 0.7, 0.1, 0.2, 0.6, 0.95]
    predicted = [probability > 0.5 for probability in probabilities]
    assert matthews(truth, predicted) == pytest.approx(matthews_corrcoef(truth, predicted))
    assert auc(truth, probabilities) == pytest.approx(roc_auc_score(truth, probabilities))
    assert rank_correlation(truth, probabilities) == pytest.approx(spearmanr(truth, probabilities).statistic)
