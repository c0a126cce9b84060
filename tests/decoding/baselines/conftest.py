"""A small language model with adapters of every kind on it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import LoraConfig
from torch import nn
from transformers import PreTrainedTokenizerFast

from mucola.attribute_models import AdaptedLMConfig, save_adapted_lm
from mucola.language_model import LanguageModel
from tests.mucola.conftest import make_model, tokenizer  # noqa: F401

LABELS = ["negative", "positive"]


@pytest.fixture(scope="session")
def small(tokenizer: PreTrainedTokenizerFast) -> LanguageModel:  # noqa: F811
    return LanguageModel(make_model("llama", len(tokenizer)), tokenizer, "tiny")


@pytest.fixture(scope="session")
def checkpoints(small: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of random adapters for ``small``: two class LMs, a generative classifier, a future discriminator."""
    root = tmp_path_factory.mktemp("adapters")
    kinds = {"good": "class_lm", "bad": "class_lm", "gedi": "generative", "future": "future"}
    return {name: save_adapter(root / name, small, kind, seed) for seed, (name, kind) in enumerate(kinds.items())}


def save_adapter(folder: Path, on: LanguageModel, kind: str, seed: int) -> str:
    model = make_model("llama", len(on.table))
    model.add_adapter(LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False), "attribute")
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora" in name:
                parameter.normal_(std=0.3)
    labels = LABELS[1:] if kind == "class_lm" else LABELS
    words = ["a bad one", "good"] if kind == "generative" else []
    head = nn.Linear(model.config.hidden_size, 2) if kind == "future" else None
    config = AdaptedLMConfig(kind, labels, "tiny", on.table.fingerprint, label_words=words)
    save_adapted_lm(folder, model, config, head)
    return str(folder)
