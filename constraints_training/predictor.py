"""One way to ask any attribute model for the class of a text."""

from __future__ import annotations

from collections.abc import Callable
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

    @torch.inference_mode()
    def __call__(self, texts: list[list[int]], batch_size: int = 64) -> Tensor:
        """Probabilities (texts, classes)."""
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        found = torch.empty(len(texts), len(self.labels))
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            batch = collate([{"tokens": texts[number], "label": 0} for number in chosen])
            found[chosen] = self.logits(batch["tokens"], batch["mask"]).float().softmax(dim=-1)
        return found


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
        return Predictor(lm, tokenizer, model.labels, lambda t, mask: classifier.classify_tokens(t, table, mask))
    if isinstance(model, FutureDiscriminator):
        return Predictor(lm, tokenizer, model.labels, _last_prediction(model))
    if model.config.kind == "generative":
        words, adapted = model.config.label_words, model
        return Predictor(
            lm,
            tokenizer,
            model.config.labels,
            lambda t, mask: conditional_log_probs(adapted, tokenizer, words, t, mask),
        )
    if against is None:
        raise MucolaError(f"{name} is a language model of one class; name one of another class with --against.")
    other = load_attribute_model(against, lm=lm)
    if not isinstance(other, AdaptedLM) or other.config.kind != "class_lm":
        raise MucolaError(f"{against} is not a language model of one class.")
    pair = [model, other]

    def compare(tokens: Tensor, mask: Tensor) -> Tensor:
        return torch.stack([(next_token_log_probs(lm, tokens, mask) * mask[:, 1:]).sum(1) for lm in pair], dim=1)

    return Predictor(lm, tokenizer, [label for lm in pair for label in lm.config.labels], compare)


def _last_prediction(model: FutureDiscriminator) -> Callable[[Tensor, Tensor], Tensor]:
    def logits(tokens: Tensor, mask: Tensor) -> Tensor:
        prefixes, _ = model(input_ids=tokens, attention_mask=mask, use_cache=False)
        return prefixes[torch.arange(len(tokens)), mask.sum(dim=1) - 1]

    return logits
