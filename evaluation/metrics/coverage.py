"""Which of the wanted words a text really has. Matching is on whole words and ignores case."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from evaluation.metrics.base import PromptMetric, ratio

Prompts = Iterable[tuple[Sequence[str], Sequence[Sequence[str]]]]
"""For each prompt the texts of its samples and the wanted words of each."""


def inflections(word: str) -> set[str]:
    """Regular English forms of a word: plural, third person, past, participle, comparative.

    Irregular forms (ran, teeth) are not known: coverage with inflections is a lower bound.

    >>> sorted(inflections("bake"))
    ['bake', 'baked', 'baker', 'bakes', 'bakest', 'baking']
    >>> sorted(inflections("stop"))[:4]
    ['stop', 'stoped', 'stoper', 'stopest']
    >>> {"stopped", "stopping", "stops"} <= inflections("stop")
    True
    >>> {"tries", "tried", "trying"} <= inflections("try")
    True
    """
    stems = {word}
    if re.search(r"[^aeiou][aeiou][^aeiouwxy]$", word):
        stems.add(word + word[-1])
    forms = {word, word + ("es" if re.search(r"(s|x|z|ch|sh)$", word) else "s")}
    for stem in stems:
        if stem.endswith("e"):
            forms |= {stem + ending for ending in ("d", "r", "st")} | {stem[:-1] + "ing"}
        elif re.search(r"[^aeiou]y$", stem):
            forms |= {stem[:-1] + ending for ending in ("ies", "ied", "ier", "iest")} | {stem + "ing"}
        else:
            forms |= {stem + ending for ending in ("ed", "er", "est", "ing")}
    return forms


@lru_cache(maxsize=65536)
def _pattern(words: str, inflected: bool) -> re.Pattern[str]:
    *start, last = words.split()
    ends = sorted(inflections(last.lower())) if inflected else [last]
    body = r"\s+".join([*map(re.escape, start), f"(?:{'|'.join(map(re.escape, ends))})"])
    return re.compile(rf"(?<!\w){body}(?!\w)", re.IGNORECASE)


@lru_cache(maxsize=1024)  # several metrics ask the same of a prompt's samples
def covers(text: str, words: str, inflected: bool = False) -> bool:
    """Whether ``words``, a word or a phrase, stands in the text on its own.

    >>> covers("The dogs bark.", "dog"), covers("The dogs bark.", "dog", inflected=True)
    (False, True)
    >>> covers("Hot\\ndogs!", "hot dogs")
    True
    """
    if not words.strip():
        raise ValueError("An empty word cannot be looked for.")
    return _pattern(words, inflected).search(text) is not None


def _found(text: str, wanted: Sequence[str], inflected: bool) -> int:
    return sum(covers(text, words, inflected) for words in wanted)


def _require_keywords(wanted: Sequence[Sequence[str]]) -> None:
    if not all(wanted):
        raise ValueError("A sample without keywords has no coverage.")


def _count(texts: Sequence[str], wanted: Sequence[Sequence[str]], inflected: bool) -> tuple[float, float]:
    _require_keywords(wanted)
    return float(sum(_found(text, words, inflected) for text, words in zip(texts, wanted, strict=True))), len(texts)


def _all(texts: Sequence[str], wanted: Sequence[Sequence[str]], inflected: bool) -> tuple[float, float]:
    _require_keywords(wanted)
    whole = sum(_found(text, words, inflected) == len(words) for text, words in zip(texts, wanted, strict=True))
    return float(whole), len(texts)


def _terms(texts: Sequence[str], wanted: Sequence[Sequence[str]], inflected: bool) -> tuple[float, float]:
    found = sum(_found(text, words, inflected) for text, words in zip(texts, wanted, strict=True))
    return float(found), float(sum(map(len, wanted)))


def keyword_count(samples: Prompts, inflected: bool = False) -> float:
    """Keywords found per sample, on average.

    >>> keyword_count([(["a dog runs", "a cat"], [["dog", "runs"], ["dog", "runs"]])])
    1.0
    """
    return ratio(_count(*prompt, inflected) for prompt in samples)


def keyword_coverage(samples: Prompts, inflected: bool = False) -> float:
    """Share of samples with all of their keywords.

    >>> keyword_coverage([(["a dog runs", "a cat"], [["dog", "runs"], ["dog", "runs"]])])
    0.5
    """
    return ratio(_all(*prompt, inflected) for prompt in samples)


def terminology_coverage(samples: Prompts) -> float:
    """Share of the wanted terms that are used, over all samples; a sentence may want none.

    >>> terminology_coverage([(["Das Preisgeld"], [["Preisgeld", "Interview"]])])
    0.5
    """
    return ratio(_terms(*prompt, False) for prompt in samples)


class _Coverage(PromptMetric):
    higher_is_better = True

    def __init__(self, inflected: bool = False) -> None:
        super().__init__()
        self.inflected = inflected

    def facts(self) -> dict[str, object]:
        return {"match": "whole words, any case" + (", regular inflections" if self.inflected else "")}


class KeywordCount(_Coverage):
    """See `keyword_count`."""

    name = "keyword_count"

    def totals(self, texts: Sequence[str], wanted: Sequence[Sequence[str]]) -> Sequence[float]:
        return _count(texts, wanted, self.inflected)


class KeywordCoverage(_Coverage):
    """See `keyword_coverage`."""

    name = "keyword_coverage"

    def totals(self, texts: Sequence[str], wanted: Sequence[Sequence[str]]) -> Sequence[float]:
        return _all(texts, wanted, self.inflected)


class TerminologyCoverage(_Coverage):
    """See `terminology_coverage`."""

    name = "terminology_coverage"

    def totals(self, texts: Sequence[str], wanted: Sequence[Sequence[str]]) -> Sequence[float]:
        return _terms(texts, wanted, self.inflected)
