"""From rows to clean, labelled texts: bad rows counted, classes balanced, splits made by seed."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from datasets import Dataset

from constraints_training.sources import Source
from mucola.errors import MucolaError


@dataclass
class Texts:
    """Labelled texts of one split, and what was wrong with the rows that are not among them."""

    dataset: Dataset
    """Columns ``text`` and ``label`` (a class number)."""
    skipped: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.dataset)

    def pick(self, rows: Sequence[int]) -> Texts:
        """The texts of these rows."""
        return Texts(self.dataset.select(list(rows)), self.skipped)

    @property
    def fingerprint(self) -> str:
        """A short name for exactly these texts and labels in this order."""
        digest = hashlib.sha256()
        for text, label in zip(self.dataset["text"], self.dataset["label"], strict=True):
            digest.update(f"{label}\t{text}\n".encode())
        return digest.hexdigest()[:16]


def read(source: Source, labels: dict[str, str], natural: bool) -> Texts:
    """Read a source; ``labels`` maps what stands in the label column to the names of the classes."""
    classes = class_names(labels)
    numbers = {value: classes.index(name) for value, name in labels.items()}
    texts: list[str] = []
    found: list[int] = []
    skipped: Counter[str] = Counter()
    first_bad = ""
    for place, text, label in source.rows():
        text = text.strip() if isinstance(text, str) else ""
        number = numbers.get(str(label).strip())
        if text and number is not None:
            texts.append(as_written(text) if natural else text)
            found.append(number)
            continue
        reason = "no text" if not text else f"unknown label {label!r}"
        skipped[reason] += 1
        first_bad = first_bad or f"{place} has {reason}"
    if not texts:
        raise MucolaError(
            f"No usable row in {source.path}: {first_bad or 'it is empty'}. The labels that are known are "
            f"{', '.join(labels)}."
        )
    return Texts(Dataset.from_dict({"text": texts, "label": found}), skipped)


def class_names(labels: dict[str, str]) -> list[str]:
    """The classes in the order in which ``labels`` names them first."""
    return list(dict.fromkeys(labels.values()))


def require_every_class(texts: Texts, labels: dict[str, str], what: str) -> None:
    """Refuse data in which some class has no text at all: nothing could be learned or measured."""
    counts = Counter(texts.dataset["label"])
    for number, name in enumerate(class_names(labels)):
        if not counts[number]:
            raise MucolaError(f"The {what} data have no text of class {name!r}; check the labels and the data.")


def shuffled(count: int, seed: int) -> list[int]:
    """The numbers below ``count`` in an order that depends on the seed alone."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()


def balanced(texts: Texts, seed: int) -> Texts:
    """As many texts of every class as the smallest class has, drawn by seed, in shuffled order."""
    labels = texts.dataset["label"]
    share = min(Counter(labels).values())
    taken: Counter[int] = Counter()
    rows = []
    for row in shuffled(len(texts), seed):
        if taken[labels[row]] < share:
            taken[labels[row]] += 1
            rows.append(row)
    return texts.pick(rows)


def split_off(texts: Texts, share: float, seed: int) -> tuple[Texts, Texts]:
    """The rest, and a share of the texts that no row is in twice."""
    order = shuffled(len(texts), seed)
    size = max(1, round(share * len(order)))
    return texts.pick(order[size:]), texts.pick(order[:size])


_JOINED = re.compile(r" (n't|'s|'re|'ve|'ll|'d|'m|[.,!?;:%)\]]+)(?= |$)", re.IGNORECASE)
_OPENING = re.compile(r"([(\[$#]) ")
_ALONE = re.compile(r"\bi\b")
_SENTENCE = re.compile(r"(^|[.!?] )([a-z])")


def as_written(text: str) -> str:
    """Undo the lower case and the blanks before punctuation of old corpora.

    A language model writes like a person; a classifier that only ever saw ``it 's good .`` would
    meet other tokens at decoding than it was trained on.

    >>> as_written("it 's a very good one , and i do n't mind .")
    "It's a very good one, and I don't mind."
    """
    text = text.replace("`` ", '"').replace(" ''", '"').replace("-lrb- ", "(").replace(" -rrb-", ")")
    text = _OPENING.sub(r"\1", _JOINED.sub(r"\1", text))
    if text == text.lower():
        text = _SENTENCE.sub(lambda match: match[1] + match[2].upper(), _ALONE.sub("I", text))
    return text
