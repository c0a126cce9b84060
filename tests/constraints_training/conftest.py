"""A language model, encoders and data small enough to train in seconds, in the folders a user would have."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_training import BAD, GOOD, PLAIN, save_encoder, save_tokenizer, sentences, write_tsv


@pytest.fixture(scope="session")
def tiny_lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny-lm")
    size = save_tokenizer(folder, [*PLAIN, *GOOD, *BAD], unk_token="<unk>", eos_token="<eos>")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        tie_word_embeddings=True,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=1,
    )
    model = LlamaForCausalLM(config)
    model.get_input_embeddings().weight.data.mul_(5)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session", params=["bert", "roberta"])
def any_encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp(f"tiny-{request.param}"), request.param)


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("tiny-encoder"), "bert")


@pytest.fixture(scope="session")
def sentiment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sentiment")
    return {
        "train": write_tsv(folder / "train.tsv", sentences(512)),
        "dev": write_tsv(folder / "dev.tsv", sentences(128, seed=1)),
    }


@pytest.fixture
def fit_arguments(tmp_path: Path, tiny_lm: Path, sentiment: dict[str, Path]) -> list[str]:
    """``mucola train`` arguments of a run on the tiny model, without the model class."""
    return [
        "fit",
        "--trainer.accelerator=cpu",
        "--trainer.max_epochs=3",
        f"--trainer.default_root_dir={tmp_path / 'run'}",
        f"--data.lm={tiny_lm}",
        "--data.labels={'0': negative, '1': positive}",
        f"--data.train.path={sentiment['train']}",
        "--data.train.text_column=sentence",
        f"--data.dev.path={sentiment['dev']}",
        "--data.dev.text_column=sentence",
        "--data.batch_size=16",
    ]


@pytest.fixture
def classifier_arguments(fit_arguments: list[str], tiny_encoder: Path) -> list[str]:
    return [
        *fit_arguments,
        "--model=constraints_training.classifier.ClassifierTraining",
        f"--model.encoder={tiny_encoder}",
        "--model.pretrained=false",
        "--model.learning_rate=5e-3",
    ]
