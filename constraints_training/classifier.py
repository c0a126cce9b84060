"""Training a classifier on the language model's embeddings."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from constraints_training.base import ClassifyingTraining
from constraints_training.projection import start_projection
from mucola import model_store
from mucola.attribute_models import EmbeddingClassifier, EmbeddingClassifierConfig, load_attribute_model
from mucola.attribute_models.adapted_lm import table_of
from mucola.attribute_models.classifier import drop_unused
from mucola.embeddings import EmbeddingTable, fingerprint
from mucola.errors import MucolaError
from mucola.packages import quiet_transformers


class ClassifierTraining(ClassifyingTraining):
    """An encoder (RoBERTa, BERT, ...) that reads the language model's frozen table through a learned projection.

    Args:
        encoder: a built-in name, folder or hub id; its tokenizer is used for the start of the projection.
        start_from: a classifier for the same table to go on from, by name or folder, instead of the encoder.
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
        encoder: str = "roberta-base",
        learning_rate: float = 1e-5,
        layers: int | None = None,
        pretrained: bool = True,
        start_from: str | None = None,
        dropout: float = 0.1,
        export_dtype: Literal["float32", "float16"] = "float32",
        warmup: float = 0.06,
        weight_decay: float = 0.01,
        seed: int = 0,
    ) -> None:
        super().__init__(lm, labels, learning_rate, warmup, weight_decay, seed)
        self.encoder_name, self.layers, self.pretrained = encoder, layers, pretrained
        self.dropout, self.export_dtype, self.start_from = dropout, export_dtype, start_from

    def build(self) -> None:
        lm, lm_tokenizer = model_store.load_causal_lm(self.lm_name)
        # Not a parameter and not in checkpoints: the table belongs to the language model.
        self.register_buffer("table", table_of(lm).detach().clone(), persistent=False)
        self.network = self._go_on() if self.start_from else self._start(lm_tokenizer)
        self.network.requires_grad_(True).train()

    def _go_on(self) -> EmbeddingClassifier:
        """The classifier to go on from; its head is kept if the classes are the same."""
        assert self.start_from is not None
        table = EmbeddingTable(self.table, torch.ones(len(self.table), dtype=torch.bool))
        model = load_attribute_model(self.start_from, table)
        if not isinstance(model, EmbeddingClassifier):
            raise MucolaError(f"{self.start_from} is not a classifier, so a classifier cannot go on from it.")
        if model.labels != self.labels:
            model.config.labels = self.labels
            model.head = nn.Linear(model.head.in_features, len(self.labels))
        return model

    def _start(self, lm_tokenizer: Any) -> EmbeddingClassifier:
        """A new classifier on the pretrained encoder, or on one of the same shape with random weights."""
        encoder, encoder_tokenizer = self._encoder()
        words = encoder.get_input_embeddings().weight.detach().clone()
        drop_unused(encoder)
        settings = encoder.config.to_dict()
        settings.pop("_name_or_path", None)  # a path of this machine
        config = EmbeddingClassifierConfig(
            encoder=settings,
            labels=self.labels,
            table_dim=self.table.shape[1],
            table_fingerprint=fingerprint(self.table),
            base_model=self.lm_name,
        )
        network = EmbeddingClassifier(config)
        if words.shape[1] != network.projection.out_features:
            raise MucolaError(
                f"{self.encoder_name} has word embeddings of width {words.shape[1]} under an encoder of width "
                f"{network.projection.out_features}, so a projection cannot stand in for them; choose another encoder."
            )
        if self.pretrained:
            network.encoder.load_state_dict(encoder.state_dict())
            projection, bias = start_projection(lm_tokenizer, self.table, encoder_tokenizer, words)
            with torch.no_grad():
                network.projection.weight.copy_(projection)
                network.projection.bias.copy_(bias)
                if encoder_tokenizer.cls_token_id is not None:
                    network.start.copy_(words[encoder_tokenizer.cls_token_id])
        return network

    def _encoder(self) -> tuple[Any, Any]:
        from transformers import AutoModel

        encoder, tokenizer = model_store.load_pretrained(self.encoder_name, AutoModel)
        available = getattr(encoder.config, "num_hidden_layers", 0)
        if encoder.config.is_encoder_decoder or not hasattr(encoder.config, "max_position_embeddings"):
            raise MucolaError(f"{self.encoder_name} is not an encoder of the BERT or RoBERTa type.")
        if self.layers is not None and not 1 <= self.layers <= available:
            raise MucolaError(f"layers must be between 1 and the encoder's {available}, not {self.layers}.")
        settings = copy.deepcopy(encoder.config)
        settings.num_hidden_layers = self.layers or available
        settings.hidden_dropout_prob = settings.attention_probs_dropout_prob = self.dropout
        chosen = AutoModel.from_config(settings)
        if self.pretrained:
            chosen.load_state_dict(encoder.state_dict(), strict=False)  # leaves out the layers above
        return chosen, tokenizer

    def logits(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.network.classify_tokens(tokens, self.table, mask)

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self.logits(batch["tokens"], batch["mask"]), batch["labels"])

    def export(self, folder: Path) -> None:
        stored = copy.deepcopy(self.network)
        with quiet_transformers():
            stored.to(getattr(torch, self.export_dtype)).save_pretrained(folder)
