"""Constraints that compare how likely two language models find a text.

    f = ( log p(x, y | other) - log p(x, y | label) + log t / (1 - t) ) / (|x| + |y|)   <=  0

By Bayes' rule over the two, that is p(label | x, y) >= t. In the paper t is 1/2, and so it is in a constraint as it is
made; ``prompt(...) > 0.9`` asks for more. The two models are the base LM after two verbalisers (no training), one
class-conditional LM after two label words (GeDi), or two LMs of one class each (DExperts).

Token by token they say how much each way to go on adds to the odds, so they can lead the writing of drafts too.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from mucola.attention import Prefix
from mucola.attribute_models import AdaptedLM, load_attribute_model
from mucola.constraints.base import Constraint, Guide
from mucola.errors import MucolaError
from mucola.language_model import LanguageModel, Reading
from mucola.names import unknown
from mucola.prompts import Prompt, Sequences


@dataclass(frozen=True)
class Side:
    """One of the two: a language model, and the tokens that it reads before the text."""

    language_model: LanguageModel
    condition: tuple[int, ...]
    prompts: dict[Prompt, float] = field(default_factory=dict)
    """-log p(x | condition) of the prompts met so far."""

    def nll(self, sequences: Sequences) -> Tensor:
        """-log p(y | x, condition) of each row."""
        return self.language_model.nll(sequences.embeddings, sequences.tokens, self._prefixes(sequences.prompts))

    def reading(self, prompts: Sequence[Prompt]) -> Reading:
        """Follow texts after these prompts while they are written."""
        return self.language_model.reading(self._prefixes(prompts))

    def _prefixes(self, prompts: Sequence[Prompt]) -> list[Prefix]:
        before = [(*self.condition, *prompt.tokens) if prompt.text else self.condition for prompt in prompts]
        return [self.language_model.prefix(tokens) for tokens in before]

    def prompt_nll(self, prompt: Prompt) -> float:
        """-log p(x | condition)"""
        if prompt not in self.prompts:
            score = self.language_model.score(prompt.tokens, self.condition) if prompt.text else 0.0
            self.prompts[prompt] = score
        return self.prompts[prompt]


class Contrast(Constraint):
    """The text is likelier under ``label`` than under ``other``; with ``> t``, ``label`` has a probability of t."""

    guides = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.threshold = 0.0
        self.log_odds = 0.0

    def __gt__(self, probability: float) -> Contrast:
        if not 0 < probability < 1:
            raise MucolaError(f"{self.name} > {probability}: a probability lies between 0 and 1.")
        other = copy.copy(self)
        other.name = f"{self.name} > {probability:g}"
        other.log_odds = math.log(probability / (1 - probability))
        return other

    __ge__ = __gt__

    @abstractmethod
    def sides(self, language_model: LanguageModel) -> tuple[Side, Side]:
        """The model of the label, and the other."""

    def prepare(self, language_model: LanguageModel) -> None:
        self.label, self.other = self.sides(language_model)

    def value(self, sequences: Sequences) -> Tensor:
        before = [self.label.prompt_nll(prompt) - self.other.prompt_nll(prompt) for prompt in sequences.prompts]
        difference = self.label.nll(sequences) - self.other.nll(sequences)
        lengths = [len(prompt.tokens) * bool(prompt.text) + sequences.tokens.shape[1] for prompt in sequences.prompts]
        return (difference + difference.new_tensor(before) + self.log_odds) / difference.new_tensor(lengths)

    def guide(self, prompts: Sequence[Prompt]) -> Guide:
        return _Lead(self.label.reading(prompts), self.other.reading(prompts))


class _Lead:
    def __init__(self, label: Reading, other: Reading) -> None:
        self.label, self.other = label, other

    def advice(self) -> Tensor:
        return self.label.logits() - self.other.logits()

    def read(self, tokens: Tensor) -> None:
        self.label.read(tokens)
        self.other.read(tokens)


class _Verbalised(Contrast):
    def __init__(self, label: str, other: str) -> None:
        super().__init__(f'prompt("{label}", "{other}")')
        self.texts = (label, other)

    def sides(self, language_model: LanguageModel) -> tuple[Side, Side]:
        label, other = (Side(language_model, language_model.encode(text)) for text in self.texts)
        return label, other


class _Generative(Contrast):
    def __init__(self, model: str, label: str, other: str | None) -> None:
        super().__init__(f'generative("{model}", "{label}")')
        self.model, self.labels = model, (label, other)

    def sides(self, language_model: LanguageModel) -> tuple[Side, Side]:
        adapted = _load(self.model, "generative", language_model)
        known = adapted.config.labels
        label, other = self.labels
        for name in (label, other):
            if name is not None and name not in known:
                raise unknown(f"label of {self.model}", name, known)
        if other is None:
            if len(known) != 2:
                raise MucolaError(f"{self.model} knows {len(known)} labels; name the one that {label!r} is to beat.")
            other = known[1 - known.index(label)]
        conditioned = language_model.adapted(adapted)
        words = dict(zip(known, adapted.config.label_words, strict=True))
        return Side(conditioned, conditioned.encode(words[label])), Side(conditioned, conditioned.encode(words[other]))


class _TwoModels(Contrast):
    def __init__(self, label: str, other: str) -> None:
        super().__init__(f'contrast("{label}", "{other}")')
        self.models = (label, other)

    def sides(self, language_model: LanguageModel) -> tuple[Side, Side]:
        label, other = (language_model.adapted(_load(name, "class_lm", language_model)) for name in self.models)
        return Side(label, label.encode("")), Side(other, other.encode(""))


def _load(name: str, kind: str, language_model: LanguageModel) -> AdaptedLM:
    loaded = load_attribute_model(name, language_model.table, language_model.model)
    if not isinstance(loaded, AdaptedLM) or loaded.config.kind != kind:
        raise MucolaError(f"{name} is not a checkpoint of the kind {kind!r}, which this constraint needs.")
    return loaded


def prompt(label: str, other: str) -> Contrast:
    """Likelier after the words ``label`` ("This is amazing") than after ``other`` ("This is terrible")."""
    return _Verbalised(label, other)


def generative(model: str, label: str, other: str | None = None) -> Contrast:
    """Likelier as ``label`` than as ``other`` under one class-conditional LM (GeDi)."""
    return _Generative(model, label, other)


def contrast(label: str, other: str) -> Contrast:
    """Likelier under the LM ``label`` than under the LM ``other`` (DExperts' expert and anti-expert)."""
    return _TwoModels(label, other)
