"""Constraints that compare how likely two language models find a text.

    f = ( log p(x, y | other) - log p(x, y | label) + log t / (1 - t) ) / (|x| + |y|)   <=  0

By Bayes' rule over the two, that is p(label | x, y) >= t. In the paper t is 1/2, and so it is in a constraint as it is
made; ``prompt(...) > 0.9`` asks for more. The two models are the base LM after two verbalisers (no training), one
class-conditional LM after two label words (GeDi), or two LMs of one class each (DExperts).

The odds of two language models are rarely even where a text has neither attribute: one prompt tilts them one way, the
next prompt the other way. A ``relative`` constraint therefore compares with what the base LM writes there by itself,

    f = ( log p(y | x, other) - log p(y | x, label) + r(x) |y| + log t / (1 - t) ) / |y|   <=  0,

where r(x) is the mean of log p(y | x, label) - log p(y | x, other) over its plain samples, a token: Bayes' rule with
the prior odds that make them neutral on average. The paper has no such thing.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mucola.attribute_models import AdaptedLM, load_attribute_model
from mucola.constraints.base import Constraint
from mucola.errors import MucolaError
from mucola.language_model import LanguageModel
from mucola.names import unknown
from mucola.prompts import Prompt, Sequences
from mucola.randomness import stream

PLAIN_SAMPLES, PLAIN_LENGTH, PLAIN_NUCLEUS = 32, 20, 0.96
"""Of the base LM's own texts that a relative constraint compares with."""


@dataclass(frozen=True)
class Side:
    """One of the two: a language model, and the tokens that it reads before the text."""

    language_model: LanguageModel
    condition: tuple[int, ...]
    prompts: dict[Prompt, float] = field(default_factory=dict)
    """-log p(x | condition) of the prompts met so far."""

    def nll(self, sequences: Sequences) -> Tensor:
        """-log p(y | x, condition) of each row."""
        prefixes = [self.language_model.prefix(self._before(prompt)) for prompt in sequences.prompts]
        return self.language_model.nll(sequences.embeddings, sequences.tokens, prefixes)

    def _before(self, prompt: Prompt) -> tuple[int, ...]:
        return (*self.condition, *prompt.tokens) if prompt.text else self.condition

    def prompt_nll(self, prompt: Prompt) -> float:
        """-log p(x | condition)"""
        if prompt not in self.prompts:
            score = self.language_model.score(prompt.tokens, self.condition) if prompt.text else 0.0
            self.prompts[prompt] = score
        return self.prompts[prompt]


class Contrast(Constraint):
    """The text is likelier under ``label`` than under ``other``; with ``> t``, ``label`` has a probability of t."""

    def __init__(self, name: str, relative: bool) -> None:
        self.name = f"{name[:-1]}, relative=True)" if relative else name
        self.threshold = 0.0
        self.log_odds = 0.0
        self.relative = relative

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
        self.language_model = language_model
        self._tilts: dict[Prompt, float] = {}

    def value(self, sequences: Sequences) -> Tensor:
        length = sequences.tokens.shape[1]
        difference = self.label.nll(sequences) - self.other.nll(sequences)
        if self.relative:
            before = [self.tilt(prompt) * length for prompt in sequences.prompts]
            lengths = [length] * len(sequences)
        else:
            before = [self.label.prompt_nll(prompt) - self.other.prompt_nll(prompt) for prompt in sequences.prompts]
            lengths = [len(prompt.tokens) * bool(prompt.text) + length for prompt in sequences.prompts]
        return (difference + difference.new_tensor(before) + self.log_odds) / difference.new_tensor(lengths)

    def tilt(self, prompt: Prompt) -> float:
        """r(x): log-odds of the label in a token of what the base LM writes after the prompt by itself."""
        if prompt not in self._tilts:
            uniforms = torch.rand(PLAIN_SAMPLES, PLAIN_LENGTH, generator=stream(0, prompt.id, "tilt"))
            prefixes = [self.language_model.prefix(prompt.tokens)] * PLAIN_SAMPLES
            tokens = self.language_model.continuations(prefixes, uniforms, PLAIN_NUCLEUS).tokens
            plain = Sequences.of(self.language_model, [prompt] * PLAIN_SAMPLES, tokens)
            with torch.no_grad():
                odds = self.other.nll(plain) - self.label.nll(plain)
            self._tilts[prompt] = odds.mean().item() / PLAIN_LENGTH
        return self._tilts[prompt]


class _Verbalised(Contrast):
    def __init__(self, label: str, other: str, relative: bool) -> None:
        super().__init__(f'prompt("{label}", "{other}")', relative)
        self.texts = (label, other)

    def sides(self, language_model: LanguageModel) -> tuple[Side, Side]:
        label, other = (Side(language_model, language_model.encode(text)) for text in self.texts)
        return label, other


class _Generative(Contrast):
    def __init__(self, model: str, label: str, other: str | None, relative: bool) -> None:
        super().__init__(f'generative("{model}", "{label}")', relative)
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
    def __init__(self, label: str, other: str, relative: bool) -> None:
        super().__init__(f'contrast("{label}", "{other}")', relative)
        self.models = (label, other)

    def sides(self, language_model: LanguageModel) -> tuple[Side, Side]:
        label, other = (language_model.adapted(_load(name, "class_lm", language_model)) for name in self.models)
        return Side(label, label.encode("")), Side(other, other.encode(""))


def _load(name: str, kind: str, language_model: LanguageModel) -> AdaptedLM:
    loaded = load_attribute_model(name, language_model.table, language_model.model)
    if not isinstance(loaded, AdaptedLM) or loaded.config.kind != kind:
        raise MucolaError(f"{name} is not a checkpoint of the kind {kind!r}, which this constraint needs.")
    return loaded


def prompt(label: str, other: str, *, relative: bool = False) -> Contrast:
    """Likelier after the words ``label`` ("This is amazing") than after ``other`` ("This is terrible")."""
    return _Verbalised(label, other, relative)


def generative(model: str, label: str, other: str | None = None, *, relative: bool = False) -> Contrast:
    """Likelier as ``label`` than as ``other`` under one class-conditional LM (GeDi)."""
    return _Generative(model, label, other, relative)


def contrast(label: str, other: str, *, relative: bool = False) -> Contrast:
    """Likelier under the LM ``label`` than under the LM ``other`` (DExperts' expert and anti-expert)."""
    return _TwoModels(label, other, relative)
