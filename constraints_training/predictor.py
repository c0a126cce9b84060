"""One way to ask any attribute model for the class of a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from constraints_training.batches import collate
from constraints_training.language_models import conditional_log_probs, next_token_log_probs
from mucola import model_store
from mucola.attribute_models import (
    AdaptedLM,
    EmbeddingClassifier,
    FutureDiscriminator,
    find_attribute_model,
    load_attribute_model,
    read_config,
)
from mucola.attribute_models.adapted_lm import table_of
from mucola.errors import MucolaError


@dataclass
class Predictor:
    """Class probabilities of texts in the tokens of ``lm``, which is the plain base model between calls."""

    lm: Any
    tokenizer: Any
    labels: list[str]
    logits: Callable[[Tensor, Tensor], Tensor]
    """(texts, classes); or, of a model that reads from left to right, (texts, length, classes) after every token."""
    left_to_right: bool = True

    def __call__(self, texts: list[list[int]]) -> Tensor:
        """Probabilities (texts, classes)."""
        return self.beginnings(texts, [1.0])[0]

    def beginnings(self, texts: list[list[int]], shares: Sequence[float]) -> list[Tensor]:
        """Probabilities (texts, classes) when only a share of each text is read, for each of ``shares``."""
        ends = [[len(cut(text, share)) for text in texts] for share in shares]
        if self.left_to_right:
            return self._read(texts, ends)
        beginnings = ([cut(text, share) for text in texts] for share in shares)
        return [self._read(part, [end])[0] for part, end in zip(beginnings, ends, strict=True)]

    @torch.inference_mode()
    def _read(self, texts: list[list[int]], ends: Sequence[Sequence[int]], batch_size: int = 64) -> list[Tensor]:
        """Probabilities at each of several ends of the texts, from one reading."""
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        found = [torch.empty(len(texts), len(self.labels)) for _ in ends]
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            batch = collate([{"tokens": texts[number], "label": 0} for number in chosen])
            logits = self.logits(batch["tokens"], batch["mask"]).float()
            for part, end in zip(found, ends, strict=True):
                last = torch.tensor([end[number] - 1 for number in chosen])
                at_end = logits[torch.arange(len(chosen)), last] if self.left_to_right else logits
                part[chosen] = at_end.softmax(dim=-1)
        return found


def cut(text: list[int], share: float) -> list[int]:
    """The beginning of a text, one token at least."""
    return text[: max(1, round(share * len(text)))]


def predictor(name: str, against: str | None = None) -> Predictor:
    """The attribute model called ``name`` as a classifier.

    A language model of one class tells nothing apart by itself: it needs one of the other class,
    ``against``, and the more likely of the two is the answer.
    """
    config = read_config(find_attribute_model(name))
    lm, tokenizer = model_store.load_causal_lm(config["base_model"])
    model = load_attribute_model(Path(name) if Path(name).is_dir() else name, lm=lm)
    if isinstance(model, EmbeddingClassifier):
        classifier, table = model, table_of(lm)

        def whole(tokens: Tensor, mask: Tensor) -> Tensor:
            return classifier.classify_tokens(tokens, table, mask)

        return Predictor(lm, tokenizer, model.labels, whole, left_to_right=False)
    if isinstance(model, FutureDiscriminator):
        future = model

        def after_each(tokens: Tensor, mask: Tensor) -> Tensor:
            return future(input_ids=tokens, attention_mask=mask, use_cache=False)[0]

        return Predictor(lm, tokenizer, model.labels, after_each)
    if model.config.kind == "generative":
        words, adapted = model.config.label_words, model

        def by_label_word(tokens: Tensor, mask: Tensor) -> Tensor:
            return conditional_log_probs(adapted, tokenizer, words, tokens, mask).cumsum(dim=1)

        return Predictor(lm, tokenizer, model.config.labels, by_label_word)
    if against is None:
        raise MucolaError(f"{name} is a language model of one class; name one of another class with --against.")
    other = load_attribute_model(against, lm=lm)
    if not isinstance(other, AdaptedLM) or other.config.kind != "class_lm":
        raise MucolaError(f"{against} is not a language model of one class.")
    pair = [model, other]

    def compare(tokens: Tensor, mask: Tensor) -> Tensor:
        log_probs = torch.stack([next_token_log_probs(lm, tokens, mask) for lm in pair], dim=2)
        # Nothing is known of a text's first token.
        return torch.nn.functional.pad(log_probs, (0, 0, 1, 0)).cumsum(dim=1)

    return Predictor(lm, tokenizer, [label for lm in pair for label in lm.config.labels], compare)
