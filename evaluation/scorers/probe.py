"""Scorers that read a language model's mind: a linear probe on its hidden states and token probabilities.

Acceptability needs grammar, which bags of n-grams do not have and sentence encoders have unlearned;
a causal language model knows it. The probe is a few kilobytes over a model that is at hand anyway.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from evaluation.scorers.base import Scorer, fastest_device, fingerprint
from mucola import model_store
from mucola.errors import MucolaError


@dataclass(frozen=True)
class ProbeSettings:
    """Which model is probed, and how the probe is trained."""

    model: str = "smollm2-135m"
    layers: tuple[int, ...] = (14,)
    """Hidden layers to read: their mean over tokens and their state at the last one."""
    corrupted: int = 0
    """Texts of class 1 of which a broken copy is added to class 0. Corpora of acceptability hold fine points of
    grammar; what a sampler gets wrong is coarser."""
    max_tokens: int = 64
    batch_size: int = 64
    epochs: int = 60
    learning_rate: float = 0.003
    weight_decay: float = 1.0
    seed: int = 7

    def __post_init__(self) -> None:
        if not self.layers or self.max_tokens < 2 or self.epochs < 1:
            raise MucolaError("A probe needs at least one layer, two tokens and one epoch.")


class Reader:
    """Texts to features, with a frozen language model."""

    def __init__(self, settings: ProbeSettings) -> None:
        self._settings = settings
        self._model, self._tokenizer = model_store.load_causal_lm(settings.model)
        self._device = fastest_device()
        self._model.to(self._device)
        start = self._tokenizer.bos_token_id
        self._start = start if start is not None else self._tokenizer.eos_token_id

    @torch.inference_mode()
    def features(self, texts: Sequence[str]) -> Tensor:
        """(texts, features)"""
        rows = [
            [self._start, *self._tokenizer.encode(normalised(text), add_special_tokens=False)][
                : self._settings.max_tokens
            ]
            for text in texts
        ]
        longest = max(2, *map(len, rows))
        tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=self._device)
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows], device=self._device)
        answer = self._model(input_ids=tokens, attention_mask=mask, output_hidden_states=True)
        logs = answer.logits[:, :-1].float().log_softmax(-1)
        chosen = logs.gather(2, tokens[:, 1:, None])[..., 0]
        regret = logs.amax(-1) - chosen  # how much likelier another word would have been
        made = []
        for index, row in enumerate(rows):
            count = max(len(row) - 1, 1)
            states = [
                state
                for layer in self._settings.layers
                for state in (
                    answer.hidden_states[layer][index, 1 : count + 1].mean(0),
                    answer.hidden_states[layer][index, count],
                )
            ]
            made.append(torch.cat([_statistics(chosen[index, :count], regret[index, :count]), *states]))
        return torch.stack(made).cpu()


def normalised(text: str) -> str:
    """As the corpora of acceptability are: one line, lower case, the stop at the end written.

    >>> normalised("He wo n't go , she said")
    "he won't go, she said."
    """
    text = " ".join(text.lower().split())
    text = re.sub(r" (n't|'\w+)", r"\1", text)
    text = re.sub(r" ([.,!?;:])", r"\1", text)
    return text if text.endswith((".", "!", "?")) else text + "."


def broken(texts: Sequence[str], count: int, seed: int) -> list[str]:
    """Copies of up to ``count`` texts of five words or more, with words shuffled, moved or lost."""
    draw = random.Random(seed)
    long_enough = [text for text in texts if len(text.split()) > 4]
    copies = []
    for text in draw.sample(long_enough, min(count, len(long_enough))):
        words = text.split()
        harm = draw.randrange(3)
        if harm == 0:
            draw.shuffle(words)
        elif harm == 1:
            for _ in range(2):
                words.insert(draw.randrange(len(words)), words.pop(draw.randrange(len(words))))
        else:
            words = [word for word in words if draw.random() > 0.3] or words[:1]
        copies.append(" ".join(words))
    return copies


def _statistics(logs: Tensor, regret: Tensor) -> Tensor:
    """How surprising the tokens are, on the whole and at the worst places."""
    worst = logs.sort().values[:3].mean()
    length = logs.new_tensor(float(len(logs)))
    spread = logs.std(unbiased=False)
    return torch.stack([logs.mean(), logs.min(), worst, spread, regret.mean(), regret.max(), length, logs[-1]])


class ProbeScorer(Scorer):
    """A folder with ``config.json`` and ``model.safetensors``, made by `train_probe`."""

    def __init__(self, folder: Path, name: str) -> None:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        settings = config["settings"]
        self._settings = ProbeSettings(**{**settings, "layers": tuple(settings["layers"])})
        self._reader = Reader(self._settings)
        self._tensors = load_file(folder / "model.safetensors")
        self.name = name
        self.revision = f"{name}@{fingerprint(folder / 'config.json', folder / 'model.safetensors')}"
        self.identities = frozenset({str(folder), str(folder.resolve()), self.revision})
        self.quality = config["held_out"]

    def score(self, texts: Sequence[str]) -> list[float | None]:
        scaled = (self._reader.features(texts) - self._tensors["mean"]) / self._tensors["spread"]
        return torch.sigmoid(scaled @ self._tensors["weight"] + self._tensors["bias"]).tolist()


def train_probe(
    examples: Sequence[tuple[str, int]],
    settings: ProbeSettings,
    folder: Path,
    config: dict[str, Any],
    advance: Callable[[int], object] = lambda count: None,
) -> None:
    """Read all texts once, then fit logistic regression to their features and save it."""
    reader = Reader(settings)
    fine = [text for text, label in examples if label]
    examples = [*examples, *((text, 0) for text in broken(fine, settings.corrupted, settings.seed))]
    order = sorted(range(len(examples)), key=lambda index: len(examples[index][0]))
    parts = []
    for start in range(0, len(order), settings.batch_size):
        batch = [examples[index][0] for index in order[start : start + settings.batch_size]]
        parts.append(reader.features(batch))
        advance(len(batch))
    raw = torch.cat(parts)
    labels = torch.tensor([float(examples[index][1]) for index in order])
    mean, spread = raw.mean(0), raw.std(0).clamp_min(1e-6)
    weight, bias = fit((raw - mean) / spread, labels, settings)
    tensors = {"mean": mean, "spread": spread, "weight": weight, "bias": bias}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    stored = {**config, "kind": "probe", "settings": asdict(settings)}
    (folder / "config.json").write_text(json.dumps(stored, indent=2) + "\n", encoding="utf-8")


def fit(inputs: Tensor, labels: Tensor, settings: ProbeSettings) -> tuple[Tensor, Tensor]:
    """Logistic regression by AdamW, whose decay keeps the many correlated features in check."""
    generator = torch.Generator().manual_seed(settings.seed)
    weight = nn.Parameter(torch.zeros(inputs.shape[1]))
    bias = nn.Parameter(torch.zeros(()))
    groups = [{"params": [weight], "weight_decay": settings.weight_decay}, {"params": [bias], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.epochs)
    for _ in range(settings.epochs):
        for batch in torch.randperm(len(inputs), generator=generator).split(256):
            loss = nn.functional.binary_cross_entropy_with_logits(inputs[batch] @ weight + bias, labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    return weight.detach(), bias.detach()
