"""Training language models on an attribute: generative classifiers, class LMs, future discriminators."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from constraints_training.base import AttributeTraining, ClassifyingTraining
from mucola import model_store
from mucola.attribute_models import AdaptedLMConfig, save_adapted_lm
from mucola.attribute_models.adapted_lm import hidden_states, table_of
from mucola.embeddings import fingerprint
from mucola.errors import MucolaError


class LanguageModelTraining(AttributeTraining):
    """What the three share: the base model with a LoRA adapter, or fully tuned, its tables frozen.

    Args:
        tuning: ``lora`` trains an adapter, so that several share the base model's weights at decoding; ``full``
            trains all weights except the tables; ``frozen`` trains none (only a future discriminator's head).
        rank: rank of the adapter, on all linear layers.
        lm, labels, learning_rate, warmup, weight_decay, seed: see :class:`AttributeTraining`.
    """

    kind = ""
    tunings: tuple[str, ...] = ("lora", "full")

    def __init__(
        self,
        lm: str,
        labels: list[str],
        learning_rate: float = 3e-4,
        tuning: Literal["lora", "full", "frozen"] = "lora",
        rank: int = 8,
        warmup: float = 0.06,
        weight_decay: float = 0.01,
        seed: int = 0,
    ) -> None:
        super().__init__(lm, labels, learning_rate, warmup, weight_decay, seed)
        if tuning not in self.tunings:
            raise MucolaError(f"{type(self).__name__} can be tuned as {' or '.join(self.tunings)}, not {tuning!r}.")
        self.tuning, self.rank = tuning, rank

    def build(self) -> None:
        self.network, self.tokenizer = model_store.load_causal_lm(self.lm_name)
        self.table_fingerprint = fingerprint(table_of(self.network))
        if self.tuning == "lora":
            from peft import LoraConfig

            adapter = LoraConfig(r=self.rank, lora_alpha=2 * self.rank, target_modules="all-linear")
            self.network.add_adapter(adapter)
        elif self.tuning == "full":
            self.network.requires_grad_(True)
            for table in (self.network.get_input_embeddings(), self.network.get_output_embeddings()):
                table.requires_grad_(False)

    @property
    def description(self) -> dict[str, Any]:
        """What the exported folder says about itself."""
        return {
            "kind": self.kind,
            "labels": self.labels,
            "base_model": self.lm_name,
            "table_fingerprint": self.table_fingerprint,
            "tuning": self.tuning,
        }

    def export(self, folder: Path) -> None:
        save_adapted_lm(folder, self.network, AdaptedLMConfig(**self.description))


class GenerativeTraining(LanguageModelTraining, ClassifyingTraining):
    """A generative classifier (GeDi): one LM, conditioned on a label word in front of the text.

    By Bayes' rule over the conditionings, ``p(label | text) ~ p(text | label)`` with equal priors; the loss
    is ``(1 - lm_weight) * -log p(label | text) + lm_weight * -log p(text | label) / length``.

    Args:
        label_words: what stands in front of the text, a word or phrase for each label; the labels by default.
        lm_weight: share of the language-model loss.
        options: see :class:`LanguageModelTraining`.
    """

    kind = "generative"
    one_loss = False

    def __init__(
        self,
        lm: str,
        labels: list[str],
        label_words: list[str] | None = None,
        lm_weight: float = 0.6,
        **options: Any,
    ) -> None:
        super().__init__(lm, labels, **options)
        self.label_words = label_words or list(labels)
        if len(self.label_words) != len(labels):
            raise MucolaError(f"{len(labels)} labels need as many label words, not {len(self.label_words)}.")
        if not 0 <= lm_weight < 1:
            raise MucolaError("lm_weight must be at least 0 and below 1.")
        self.lm_weight = lm_weight

    def logits(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return conditional_log_probs(self.network, self.tokenizer, self.label_words, tokens, mask).sum(dim=1)

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        log_probs = self.logits(batch["tokens"], batch["mask"])
        told_apart = nn.functional.cross_entropy(log_probs, batch["labels"])
        own = log_probs.gather(1, batch["labels"][:, None]).squeeze(1)
        return (1 - self.lm_weight) * told_apart - self.lm_weight * (own / batch["mask"].sum(dim=1)).mean()

    @property
    def description(self) -> dict[str, Any]:
        return super().description | {"label_words": self.label_words}


class ClassLMTraining(LanguageModelTraining):
    """A language model of one class (a DExperts expert or anti-expert, or DAPT): ``data.only`` names the class.

    The loss is that of the LM on every token but a text's first, which has nothing to be predicted from.

    Args:
        label: the class it is trained on.
        options: see :class:`LanguageModelTraining`.
    """

    kind = "class_lm"

    def __init__(
        self,
        lm: str,
        labels: list[str],
        label: str,
        **options: Any,
    ) -> None:
        super().__init__(lm, labels, **options)
        self.label = label

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        log_probs = next_token_log_probs(self.network, batch["tokens"], batch["mask"])
        scored = batch["mask"][:, 1:].sum(dim=1).clamp(min=1)
        return -(log_probs.sum(dim=1) / scored).mean()

    @property
    def description(self) -> dict[str, Any]:
        return super().description | {"labels": [self.label]}


class FutureTraining(LanguageModelTraining, ClassifyingTraining):
    """A future discriminator (FUDGE): the label of the whole text, predicted after every token of it."""

    kind = "future"
    one_loss = False
    tunings = ("lora", "full", "frozen")

    def build(self) -> None:
        super().build()
        self.head = nn.Linear(self.network.config.hidden_size, len(self.labels))

    def prefix_logits(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Logits (texts, length, classes) after each token."""
        states = hidden_states(self.network, input_ids=tokens, attention_mask=mask, use_cache=False)
        return self.head(states.last_hidden_state)

    def logits(self, tokens: Tensor, mask: Tensor) -> Tensor:
        last = mask.sum(dim=1) - 1
        return self.prefix_logits(tokens, mask)[torch.arange(len(tokens), device=tokens.device), last]

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        logits = self.prefix_logits(batch["tokens"], batch["mask"])
        labels = batch["labels"][:, None].expand(-1, logits.shape[1])
        losses = nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
        return ((losses * batch["mask"]).sum(dim=1) / batch["mask"].sum(dim=1)).mean()

    def export(self, folder: Path) -> None:
        save_adapted_lm(folder, self.network, AdaptedLMConfig(**self.description), self.head)


def conditional_log_probs(lm: Any, tokenizer: Any, words: list[str], tokens: Tensor, mask: Tensor) -> Tensor:
    """Log-probability of every token of a text with each label word in front of it, 0 where the text has ended:
    (texts, length, words)."""
    columns = []
    for word in words:
        context = tokenizer(word, add_special_tokens=False, return_tensors="pt").input_ids.to(tokens.device)
        context = context.expand(len(tokens), -1)
        read = torch.cat([context, tokens], dim=1)
        log_probs = next_token_log_probs(lm, read, torch.cat([torch.ones_like(context), mask], dim=1))
        columns.append(log_probs[:, context.shape[1] - 1 :])
    return torch.stack(columns, dim=2)


def next_token_log_probs(lm: Any, tokens: Tensor, mask: Tensor) -> Tensor:
    """Log-probability of every token but the first, given those before it, 0 where the text has ended:
    (texts, length - 1)."""
    logits = lm(input_ids=tokens, attention_mask=mask, use_cache=False).logits[:, :-1]
    wanted = tokens[:, 1:]
    losses = nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none")
    return -losses.view_as(wanted) * mask[:, 1:]
