"""Linear scorers on hashed word and letter n-grams: small enough to ship, quick enough for any corpus.

They share no weights, tokenizer or pretraining with any neural classifier, which makes them
honest judges of text that such a classifier steered.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from evaluation.scorers.base import Scorer, fingerprint
from mucola.errors import MucolaError

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?|[^\w\s]")


@dataclass(frozen=True)
class NgramSettings:
    """Features and training of an n-gram scorer."""

    buckets: int = 1 << 18
    words: int = 3
    """Longest word n-gram."""
    letters: int = 5
    """Longest letter n-gram inside a word; the shortest has three."""
    epochs: int = 3
    batch_size: int = 256
    learning_rate: float = 0.02
    seed: int = 7

    def __post_init__(self) -> None:
        if self.words < 1 or self.buckets < 2 or self.epochs < 1:
            raise MucolaError("An n-gram scorer needs words, buckets and epochs of at least 1, 2 and 1.")


def features(text: str, settings: NgramSettings) -> array[int]:
    """The buckets of a text's n-grams, each once."""
    # Tokenised corpora write "do n't"; people write "don't", often with a typographic apostrophe.
    words = _WORD.findall(text.lower().replace("\u2019", "'").replace(" n't", "n't").replace(" '", "'"))
    grams = {
        " ".join(words[start : start + n]) for n in range(1, settings.words + 1) for start in range(len(words) - n + 1)
    }
    for word in set(words):
        framed = f"<{word}>"
        grams.update(
            "#" + framed[start : start + n]
            for n in range(3, settings.letters + 1)
            for start in range(len(framed) - n + 1)
        )
    return array("q", sorted({crc32(gram.encode()) % settings.buckets for gram in grams} or {0}))


def _logits(bags: Sequence[array[int]], weight: Tensor, bias: Tensor) -> Tensor:
    """``w.x / sqrt(|x|) + b`` for binary bags ``x``."""
    sizes = torch.tensor([len(bag) for bag in bags])
    flat = torch.cat([torch.frombuffer(bag, dtype=torch.int64) for bag in bags])
    sums = nn.functional.embedding_bag(flat, weight, sizes.cumsum(0) - sizes, mode="sum")[:, 0]
    return sums / sizes.sqrt() + bias


class NgramScorer(Scorer):
    """A folder with ``config.json`` and ``model.safetensors`` (8-bit weights, their scale and the bias)."""

    batch_size = 1024

    def __init__(self, folder: Path, name: str) -> None:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        weights = folder / "model.safetensors"
        tensors = load_file(weights)
        self.name = name
        self.revision = f"{name}@{fingerprint(folder / 'config.json', weights)}"
        self.identities = frozenset({str(folder), str(folder.resolve()), self.revision})
        self.quality = config["held_out"]
        self._settings = NgramSettings(**config["settings"])
        self._weight = tensors["weight"].float()[:, None] * tensors["scale"]
        self._bias = tensors["bias"]

    def score(self, texts: Sequence[str]) -> list[float | None]:
        bags = [features(text, self._settings) for text in texts]
        return torch.sigmoid(_logits(bags, self._weight, self._bias)).tolist()


def train_ngrams(
    examples: Sequence[tuple[str, int]],
    settings: NgramSettings,
    folder: Path,
    config: dict[str, Any],
    advance: Callable[[int], object] = lambda count: None,
) -> None:
    """Fit logistic regression to (text, 0 or 1) and save it; ``config`` is stored beside the settings."""
    bags = [features(text, settings) for text, _ in examples]
    labels = torch.tensor([float(label) for _, label in examples])
    weight = nn.Parameter(torch.zeros(settings.buckets, 1))
    bias = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([weight, bias], lr=settings.learning_rate)
    steps = settings.epochs * -(-len(bags) // settings.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    generator = torch.Generator().manual_seed(settings.seed)
    for _ in range(settings.epochs):
        for batch in torch.randperm(len(bags), generator=generator).split(settings.batch_size):
            logits = _logits([bags[index] for index in batch], weight, bias)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            advance(len(batch))
    scale = weight.detach().abs().amax() / 127
    tensors = {"weight": (weight.detach()[:, 0] / scale).round().to(torch.int8), "scale": scale, "bias": bias.detach()}
    save_file(tensors, folder / "model.safetensors")
    stored = {**config, "kind": "ngrams", "settings": vars(settings)}
    (folder / "config.json").write_text(json.dumps(stored, indent=2) + "\n", encoding="utf-8")
