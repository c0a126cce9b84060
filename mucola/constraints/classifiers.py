"""Constraints on the probability that a classifier gives to a label."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mucola.attribute_models import EmbeddingClassifier, load_attribute_model
from mucola.constraints.base import Constraint
from mucola.errors import MucolaError
from mucola.language_model import LanguageModel
from mucola.names import unknown
from mucola.prompts import Sequences

KNOWN_LABELS = {"positive": "sentiment-sst2", "negative": "sentiment-sst2", "toxic": "toxicity", "nontoxic": "toxicity"}
"""The shipped classifier that is meant when only a label is named."""


@dataclass(frozen=True)
class Probability:
    """``p(label)`` of a classifier, to be compared with a threshold: ``classifier("toxic") < 0.01``."""

    label: str
    model: str
    prompt: bool

    def __lt__(self, threshold: float) -> Constraint:
        return Classifier(self, threshold, above=False)

    def __gt__(self, threshold: float) -> Constraint:
        return Classifier(self, threshold, above=True)

    __le__, __ge__ = __lt__, __gt__

    def __str__(self) -> str:
        return (
            f'classifier("{self.label}", "{self.model}")' if self.model != KNOWN_LABELS.get(self.label) else self.label
        )


def classifier(label: str, model: str | None = None, prompt: bool = True) -> Probability:
    """The probability of ``label`` under a classifier: a shipped name, a folder or a hub id.

    ``prompt`` says whether the classifier reads the prompt and the continuation, or the latter alone.
    """
    if model is None and label not in KNOWN_LABELS:
        raise MucolaError(
            f'No shipped classifier has the label "{label}"; known labels are {", ".join(KNOWN_LABELS)}. '
            f'For one of your own write classifier("{label}", model="folder").'
        )
    return Probability(label, model or KNOWN_LABELS[label], prompt)


def most_likely(label: str, model: str, labels: list[str], prompt: bool = True) -> list[Constraint]:
    """``label`` beats each of the other ``labels``: n classes as n - 1 constraints ``p(other) < p(label)``."""
    return [MoreLikely(Probability(label, model, prompt), other) for other in labels if other != label]


class _ReadsClassifier(Constraint):
    """What the classifier constraints share: the model, and log p of every label."""

    def __init__(self, probability: Probability) -> None:
        self.probability = probability

    def prepare(self, language_model: LanguageModel) -> None:
        loaded = load_attribute_model(self.probability.model, language_model.table)
        if not isinstance(loaded, EmbeddingClassifier):
            raise MucolaError(f"{self.probability.model} is a language model, not a classifier; see `contrast`.")
        self.model = torch.nn.Module.to(loaded, language_model.device)
        self.index = self.label_index(self.probability.label)

    def label_index(self, label: str) -> int:
        """Where the classifier keeps a label."""
        if label not in self.model.labels:
            raise unknown(f"label of {self.probability.model}", label, self.model.labels)
        return self.model.labels.index(label)

    def log_probabilities(self, sequences: Sequences) -> Tensor:
        """log p(label | text) of each row: (rows, labels)."""
        table = sequences.language_model.table
        inputs = table.input_part(sequences.embeddings)
        mask = None
        if self.probability.prompt and any(prompt.text for prompt in sequences.prompts):
            inputs, mask = _after_prompts(inputs, sequences)
        return self.model(inputs, mask).log_softmax(dim=-1)


class Classifier(_ReadsClassifier):
    """``p(label) > t`` as ``-log p <= -log t``, ``p(label) < t`` as ``log p <= log t``."""

    def __init__(self, probability: Probability, threshold: float, above: bool) -> None:
        super().__init__(probability)
        if not 0 < threshold < 1:
            raise MucolaError(f"The threshold of {probability} is a probability between 0 and 1, not {threshold}.")
        self.sign = -1.0 if above else 1.0
        self.threshold = self.sign * math.log(threshold)
        self.name = f"{probability} {'>' if above else '<'} {threshold:g}"

    def value(self, sequences: Sequences) -> Tensor:
        return self.sign * self.log_probabilities(sequences)[:, self.index]


class MoreLikely(_ReadsClassifier):
    """``p(other) < p(label)`` as ``log p(other) - log p(label) <= 0``."""

    threshold = 0.0

    def __init__(self, probability: Probability, other: str) -> None:
        super().__init__(probability)
        self.other = other
        self.name = f"{probability} > {other}"

    def prepare(self, language_model: LanguageModel) -> None:
        super().prepare(language_model)
        self.other_index = self.label_index(self.other)

    def value(self, sequences: Sequences) -> Tensor:
        log_p = self.log_probabilities(sequences)
        return log_p[:, self.other_index] - log_p[:, self.index]


def _after_prompts(inputs: Tensor, sequences: Sequences) -> tuple[Tensor, Tensor]:
    """Put each row's prompt before it, padded on the right to one length, with the mask of what is text."""
    table = sequences.language_model.table
    lengths = [len(prompt.tokens) if prompt.text else 0 for prompt in sequences.prompts]
    longest, length = max(lengths), inputs.shape[1]
    rows = inputs.new_zeros(len(lengths), longest + length, inputs.shape[2])
    mask = torch.zeros(rows.shape[:2], dtype=torch.long, device=inputs.device)
    parts = []
    for row, (prompt, known) in enumerate(zip(sequences.prompts, lengths, strict=True)):
        before = table.input_part(
            table.rows(torch.tensor(prompt.tokens[:known], dtype=torch.long, device=inputs.device))
        )
        parts.append(torch.cat([before, inputs[row], rows[row, known + length :]]))
        mask[row, : known + length] = 1
    return torch.stack(parts), mask
