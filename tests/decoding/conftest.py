"""A tiny language model in a folder, as a user's own would be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mucola.language_model import LanguageModel
from tests.mucola.conftest import TEXT, make_model, make_tokenizer, train


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = make_tokenizer()
    tokens = torch.tensor(tokenizer(TEXT).input_ids)
    tokens = tokens[: 20 * (len(tokens) // 20)].view(-1, 20)
    train(make_model("llama", len(tokenizer)), tokens).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def lm(tiny: Path) -> LanguageModel:
    from mucola.model_store import load_causal_lm

    model, tokenizer = load_causal_lm(str(tiny))
    return LanguageModel(model, tokenizer, "tiny")
