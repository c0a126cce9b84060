"""A text classifier that reads a language model's embeddings instead of token ids.

An ordinary encoder (BERT, RoBERTa, ...) is fed by a learned linear projection from the width of the
language model's table to its own. The table itself stays outside, frozen and shared, so the sampler
can hand in any point of embedding space and follow the gradient back.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel

from mucola.errors import MucolaError


class EmbeddingClassifierConfig(PretrainedConfig):
    """What rebuilds an :class:`EmbeddingClassifier`, and which table it was trained on."""

    model_type = "mucola_classifier"

    def __init__(
        self,
        encoder: dict[str, Any] | None = None,
        labels: list[str] | None = None,
        table_dim: int = 0,
        table_fingerprint: str = "",
        base_model: str = "",
        **options: Any,
    ) -> None:
        self.kind = "classifier"
        self.encoder = encoder or {}
        self.labels = list(labels or [])
        self.table_dim = table_dim
        self.table_fingerprint = table_fingerprint
        self.base_model = base_model
        super().__init__(**options)


class EmbeddingClassifier(PreTrainedModel):
    """``logits = head(mean(encoder([start, W e_1, ..., W e_L])))`` for embeddings ``e`` of the shared table.

    ``start`` is a learned vector in the place of the encoder's own first token. The pooled mean gives
    every position a share of the gradient. The encoder's word embeddings are not part of the model.
    """

    config_class = EmbeddingClassifierConfig
    base_model_prefix = "encoder"
    main_input_name = "embeddings"
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True

    def __init__(self, config: EmbeddingClassifierConfig) -> None:
        super().__init__(config)
        self.encoder = build_encoder(config.encoder)
        width = self.encoder.config.hidden_size
        self.start = nn.Parameter(torch.zeros(width))
        self.projection = nn.Linear(config.table_dim, width)
        self.dropout = nn.Dropout(getattr(self.encoder.config, "hidden_dropout_prob", 0.1))
        self.head = nn.Linear(width, len(config.labels))
        self._takes_positions = "position_ids" in inspect.signature(self.encoder.forward).parameters
        self.post_init()

    @property
    def labels(self) -> list[str]:
        """Names of the classes, in the order of the logits."""
        return self.config.labels

    @property
    def table_dim(self) -> int:
        """Width of the rows the model reads."""
        return self.config.table_dim

    @property
    def table_fingerprint(self) -> str:
        """Fingerprint of the table the model was trained on."""
        return self.config.table_fingerprint

    @property
    def max_length(self) -> int:
        """The most tokens a text may have."""
        return self.encoder.config.max_position_embeddings - _first_position(self.encoder) - 1

    def forward(self, embeddings: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Logits (texts, classes) of embeddings (texts, length, table_dim), padded on the right.

        Positions are counted from the left, never derived from padding ids: an id that means padding
        to the encoder is an ordinary token of the language model.
        """
        texts, length, _ = embeddings.shape
        if length > self.max_length:
            raise MucolaError(f"The classifier reads at most {self.max_length} tokens and was given {length}.")
        if attention_mask is None:
            attention_mask = embeddings.new_ones(texts, length, dtype=torch.long)
        inputs = torch.cat([self.start.expand(texts, 1, -1), self.projection(embeddings)], dim=1)
        mask = torch.cat([attention_mask.new_ones(texts, 1), attention_mask], dim=1)
        positions = {}
        if self._takes_positions:
            counted = torch.arange(length + 1, device=inputs.device) + _first_position(self.encoder)
            positions = {"position_ids": counted.unsqueeze(0)}
        states = self.encoder(inputs_embeds=inputs, attention_mask=mask, **positions).last_hidden_state
        weights = mask.unsqueeze(-1).to(states.dtype)
        pooled = (states * weights).sum(dim=1) / weights.sum(dim=1)
        return self.head(self.dropout(pooled))

    def classify_tokens(self, tokens: Tensor, table: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Logits of token ids (texts, length), looked up in the weight of the shared table."""
        return self(nn.functional.embedding(tokens, table), attention_mask)


def build_encoder(settings: dict[str, Any]) -> PreTrainedModel:
    """An encoder with random weights from the settings in a checkpoint, without word embeddings."""
    if not settings:
        raise MucolaError("The checkpoint's config.json does not describe an encoder.")
    encoder = AutoModel.from_config(AutoConfig.for_model(**settings))
    return drop_unused(encoder)


def drop_unused(encoder: PreTrainedModel) -> PreTrainedModel:
    """Take out what embeddings never pass through: the word matrix and the pooler."""
    special = [value for name, value in encoder.config.to_dict().items() if name.endswith("_token_id")]
    # The smallest vocabulary that the encoder's constructor accepts when it is built again.
    encoder.config.vocab_size = 1 + max((value for value in special if isinstance(value, int)), default=0)
    encoder.set_input_embeddings(nn.Identity())
    if getattr(encoder, "pooler", None) is not None:
        encoder.register_module("pooler", None)
    return encoder


def _first_position(encoder: nn.Module) -> int:
    """RoBERTa-type encoders begin counting behind their padding position, the others at 0."""
    table = getattr(getattr(encoder, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    return 0 if padding is None else padding + 1
