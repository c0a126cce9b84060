"""A language model, encoders and data small enough to train in seconds, in the folders a user would have."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

import pytest
import torch

GOOD = ["great", "lovely", "fine", "happy", "bright"]
BAD = ["awful", "ugly", "poor", "sad", "dull"]
PLAIN = ["the", "film", "is", "a", "very", "story", "with", "people", "and", "music", "it", "was", "of", "this", "."]


def sentences(count: int, seed: int = 0) -> list[tuple[int, str]]:
    """Labelled sentences with one telling word each."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        label = number % 2
        words = draw.choices(PLAIN, k=draw.randint(2, 9))
        words.insert(draw.randint(0, len(words)), draw.choice(GOOD if label else BAD))
        rows.append((label, " ".join(words)))
    return rows


def write_tsv(path: Path, rows: list[tuple[Any, Any]], header: tuple[str, str] = ("label", "sentence")) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter="\t", lineterminator="\n").writerows([header, *rows])
    return path


def save_tokenizer(folder: Path, words: list[str], **special: str) -> int:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate([*dict.fromkeys(special.values()), *words])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=special["unk_token"]))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    return len(vocabulary)


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


def save_encoder(folder: Path, kind: str) -> Path:
    from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

    special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]"}
    size = save_tokenizer(folder, [*BAD, *GOOD, *PLAIN], **special)
    torch.manual_seed(1)
    common: dict[str, Any] = {
        "vocab_size": size,
        "hidden_size": 12,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 66,
        "pad_token_id": 1,
        "initializer_range": 0.2,
    }
    model = BertModel(BertConfig(**common)) if kind == "bert" else RobertaModel(RobertaConfig(**common, eos_token_id=2))
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
