"""Sentences, tokenizers and encoders small enough to train on in seconds."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

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
