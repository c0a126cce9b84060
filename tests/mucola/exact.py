"""A language model small enough that every sequence can be written down: 30 words, 3 tokens."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from mucola.constraints import Constraint
from mucola.language_model import LanguageModel
from mucola.prompts import Sequences

WORDS = 30
LENGTH = 3


def language_model(seed: int = 0) -> LanguageModel:
    """Random weights, peaked enough that the sequences differ in probability by orders of magnitude."""
    vocabulary = {f"w{number}": number for number in range(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="w0")
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.5)
    return LanguageModel(model, wrapped, "thirty-words", allowed=torch.ones(WORDS, dtype=torch.bool))


def all_sequences() -> Tensor:
    """(27000, 3)"""
    return torch.cartesian_prod(*[torch.arange(WORDS)] * LENGTH)


def exact_probabilities(lm: LanguageModel, prompt: tuple[int, ...]) -> Tensor:
    """P(y | x) of every sequence."""
    tokens = all_sequences()
    with torch.no_grad():
        parts = [lm.nll(lm.table.rows(block), block, [lm.prefix(prompt)] * len(block)) for block in tokens.split(3000)]
    return (-torch.cat(parts)).exp()


def index(tokens: Tensor) -> Tensor:
    """Where each row of tokens stands among all sequences."""
    return (tokens * torch.tensor([WORDS**2, WORDS, 1])).sum(dim=1)


def total_variation(drawn: Tensor, exact: Tensor) -> float:
    """Half the L1 distance between the frequencies of drawn indices and the exact distribution."""
    frequencies = torch.bincount(drawn, minlength=len(exact)) / len(drawn)
    return 0.5 * (frequencies - exact).abs().sum().item()


class Bright(Constraint):
    """The mean embedding points along a fixed direction: about a third of plain samples satisfy it."""

    name, threshold = "bright", 0.0

    def value(self, sequences: Sequences) -> Tensor:
        direction = torch.linspace(-1, 1, sequences.embeddings.shape[-1])
        return -(sequences.embeddings @ direction).mean(dim=1)
