"""Training a classifier on the language model's embeddings."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from constraints_training.base import AttributeTraining
from constraints_training.projection import start_projection
from mucola import model_store
from mucola.attribute_models import EmbeddingClassifier, EmbeddingClassifierConfig
from mucola.attribute_models.classifier import drop_unused
from mucola.embeddings import fingerprint
from mucola.errors import MucolaError
from mucola.packages import quiet_transformers


class ClassifierTraining(AttributeTraining):
    """An encoder (RoBERTa, BERT, ...) that reads the language model's frozen table through a learned projection.

    Args:
        encoder: a built-in name, folder or hub id; its tokenizer is used for the start of the projection.
        layers: keep the first so many layers of the encoder; all by default.
        pretrained: start from the encoder's weights, and the projection from least squares over the tokens
            that both vocabularies share; otherwise everything starts at random.
        dropout: of the encoder and before the head.
        export_dtype: precision of the exported weights; ``float16`` halves the file.
        lm, labels, learning_rate, warmup, weight_decay, seed: see :class:`AttributeTraining`.
    """

    table: Tensor
    network: EmbeddingClassifier

    def __init__(
        self,
        lm: str,
        labels: list[str],
        encoder: str,
        learning_rate: float = 1e-5,
        layers: int | None = None,
        pretrained: bool = True,
        dropout: float = 0.1,
        export_dtype: Literal["float32", "float16"] = "float32",
        warmup: float = 0.06,
        weight_decay: float = 0.01,
        seed: int = 0,
    ) -> None:
        super().__init__(lm, labels, learning_rate, warmup, weight_decay, seed)
        self.encoder_name, self.layers, self.pretrained = encoder, layers, pretrained
        self.dropout, self.export_dtype = dropout, export_dtype

    def build(self) -> None:
        lm, lm_tokenizer = model_store.load_causal_lm(self.lm_name)
        weight = lm.get_input_embeddings().weight.detach().clone()
        # Not a parameter and not in checkpoints: the table belongs to the language model.
        self.register_buffer("table", weight, persistent=False)
        encoder, encoder_tokenizer = self._encoder()
        words = encoder.get_input_embeddings().weight.detach().clone()
        drop_unused(encoder)
        config = EmbeddingClassifierConfig(
            encoder=_portable(encoder.config),
            labels=self.labels,
            table_dim=weight.shape[1],
            table_fingerprint=fingerprint(weight),
            base_model=self.lm_name,
        )
        self.network = EmbeddingClassifier(config)
        if self.pretrained:
            self.network.encoder.load_state_dict(encoder.state_dict())
            projection, bias = start_projection(lm_tokenizer, weight, encoder_tokenizer, words)
            if projection.shape[0] != self.network.projection.out_features:
                raise MucolaError(
                    f"{self.encoder_name} has word embeddings of width {projection.shape[0]} under an encoder of "
                    f"width {self.network.projection.out_features}, so a projection cannot stand in for them; "
                    "choose another encoder."
                )
            with torch.no_grad():
                self.network.projection.weight.copy_(projection)
                self.network.projection.bias.copy_(bias)
                if encoder_tokenizer.cls_token_id is not None:
                    self.network.start.copy_(words[encoder_tokenizer.cls_token_id])
        self.network.requires_grad_(True).train()

    def _encoder(self) -> tuple[Any, Any]:
        from transformers import AutoModel

        options: dict[str, Any] = {"hidden_dropout_prob": self.dropout, "attention_probs_dropout_prob": self.dropout}
        if self.layers is not None:
            options["num_hidden_layers"] = self.layers
        encoder, tokenizer = model_store.load_pretrained(self.encoder_name, AutoModel, **options)
        available = encoder.config.num_hidden_layers
        if encoder.config.is_encoder_decoder or not hasattr(encoder.config, "max_position_embeddings"):
            raise MucolaError(f"{self.encoder_name} is not an encoder of the BERT or RoBERTa type.")
        if self.layers is not None and not 1 <= self.layers <= available:
            raise MucolaError(f"layers must be between 1 and the encoder's {available}, not {self.layers}.")
        if not self.pretrained:
            encoder = AutoModel.from_config(encoder.config)
        return encoder, tokenizer

    def logits(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.network.classify_tokens(tokens, self.table, mask)

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self.logits(batch["tokens"], batch["mask"]), batch["labels"])

    def export(self, folder: Path) -> None:
        stored = copy.deepcopy(self.network)
        with quiet_transformers():
            stored.to(getattr(torch, self.export_dtype)).save_pretrained(folder)


def _portable(config: Any) -> dict[str, Any]:
    """The encoder's settings without the path it was loaded from."""
    settings = config.to_dict()
    settings.pop("_name_or_path", None)
    return settings
