"""Models for benchmarks of speed, where only the geometry counts: random weights, no tokenizer, nothing to fetch."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, RobertaConfig
from transformers.activations import NewGELUActivation

from mucola.attribute_models import EmbeddingClassifier, EmbeddingClassifierConfig
from mucola.constraints.base import Constraint
from mucola.constraints.classifiers import Classifier, Probability
from mucola.langevin import Batch, Chain
from mucola.language_model import LanguageModel
from mucola.prompts import Prompt

Module = TypeVar("Module", bound=nn.Module)


def gpt2_small(**sizes: int) -> LanguageModel:
    """The geometry of GPT-2 small (124M); ``sizes`` for smaller ones, by the names of its config."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**sizes))
    allowed = torch.ones(model.config.vocab_size, dtype=torch.bool)
    return LanguageModel(model, tokenizer=None, name="random-gpt2", allowed=allowed)


def roberta_base(table_dim: int, **sizes: int) -> EmbeddingClassifier:
    """A classifier of two classes with the geometry of RoBERTa-base (85M without word embeddings)."""
    torch.manual_seed(1)
    encoder = {"model_type": "roberta", **RobertaConfig(**sizes).to_diff_dict(), **sizes}
    config = EmbeddingClassifierConfig(encoder=encoder, labels=["negative", "positive"], table_dim=table_dim)
    return EmbeddingClassifier(config).eval().requires_grad_(False)


def classifier_constraint(model: EmbeddingClassifier, threshold: float = 0.99) -> Constraint:
    """``p(positive) > threshold`` of the continuation alone; random weights never satisfy it."""
    constraint = Classifier(Probability("positive", "random", prompt=False), threshold, above=True)
    constraint.model, constraint.index = model, 1
    return constraint


def chains(language_model: LanguageModel, count: int, prompt: int, constraints: list[Constraint]) -> Batch:
    """``count`` chains after one prompt of random tokens."""
    start = Prompt("p", tuple(random_tokens(language_model, 1, prompt)[0].tolist()), "p")
    generators = [torch.Generator().manual_seed(seed) for seed in range(count)]
    return Batch(language_model, [Chain(start, constraints, generator) for generator in generators])


def random_tokens(language_model: LanguageModel, rows: int, length: int) -> Tensor:
    """(rows, length) of allowed tokens."""
    allowed = language_model.table.allowed.nonzero().squeeze(1)
    picks = torch.randint(len(allowed), (rows, length), generator=torch.Generator().manual_seed(0))
    return allowed[picks]


def with_gradients(model: Module) -> Module:
    """The same model on the same memory, with weights that receive gradients."""
    memo: dict[int, Any] = {id(weight): nn.Parameter(weight.data) for weight in model.parameters()}
    return copy.deepcopy(model, memo)


def with_transformers_gelu(model: Module) -> Module:
    """GPT-2 with the eight operations that transformers makes a GELU of, which our language model replaces by one."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.GELU) and child.approximate == "tanh":
                setattr(module, name, NewGELUActivation())
    return model
