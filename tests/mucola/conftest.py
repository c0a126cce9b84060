"""Small random models and a small tokenizer: for the mechanics, never for quality."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
)

from mucola.language_model import LanguageModel

TEXT = """The book is on the table and the dog is at the beach. A dog ran to the ball and the cat sat on the book.
This is amazing and this is terrible. We like the sea, the sun and the long road home. One day the war was over.
The boats on the sea went home. The beaches were empty. A surfboard lay in the sand. The painting was a good one."""


def make_tokenizer(size: int = 320) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator([TEXT] * 4, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>", bos_token="<|endoftext|>")


def make_model(kind: str, vocabulary: int, seed: int = 0, width: int = 32) -> Any:
    torch.manual_seed(seed)
    shared: dict[str, Any] = {"vocab_size": vocabulary, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
    layers: dict[str, Any] = {
        "hidden_size": width,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 2 * width,
        "max_position_embeddings": 128,
    }
    if kind == "gpt2":
        model: Any = GPT2LMHeadModel(GPT2Config(**shared, n_embd=width, n_layer=2, n_head=4, n_positions=128))
    elif kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(**shared, **layers, num_key_value_heads=2, tie_word_embeddings=True))
    elif kind == "gpt_neox":
        model = GPTNeoXForCausalLM(GPTNeoXConfig(**shared, **layers, tie_word_embeddings=False))
    else:
        model = MistralForCausalLM(MistralConfig(**shared, **layers, num_key_value_heads=2, sliding_window=4))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3)
    return model


def train(model: Any, tokens: torch.Tensor, steps: int = 40) -> Any:
    """Teach a model the text a little: chains settle on a language model, not on random weights."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.1)
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(steps):
        optimiser.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimiser.step()
    return model.requires_grad_(False)


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()


@pytest.fixture(params=["gpt2", "llama", "gpt_neox", "mistral"])
def any_lm(request: pytest.FixtureRequest, tokenizer: PreTrainedTokenizerFast) -> LanguageModel:
    return LanguageModel(make_model(request.param, len(tokenizer)), tokenizer, request.param)


@pytest.fixture(scope="session")
def lm(tokenizer: PreTrainedTokenizerFast) -> LanguageModel:
    tokens = torch.tensor([tokenizer(TEXT).input_ids])
    tokens = tokens[0, : 20 * (tokens.shape[1] // 20)].view(-1, 20)
    return LanguageModel(train(make_model("llama", len(tokenizer)), tokens), tokenizer, "tiny-llama")


def random_tokens(lm: LanguageModel, rows: int, length: int, seed: int = 0) -> torch.Tensor:
    allowed = lm.table.allowed.nonzero().squeeze(1)
    return allowed[torch.randint(len(allowed), (rows, length), generator=torch.Generator().manual_seed(seed))]
