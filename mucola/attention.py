"""Attention over a prompt that was computed once and is shared by many chains.

transformers' own caches glue the prompt's keys and values to the new ones at every call, once per
chain. Here they stay where they are: each group of chains with the same prompt attends to it in one
product, whatever its length, so prompts of different lengths share a batch without padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

NAME = "mucola_shared_prefix"


class Prefix(NamedTuple):
    """What a causal LM remembers of a prompt."""

    tokens: tuple[int, ...]
    keys: list[Tensor]
    """A layer each: (kv heads, prompt, head dim)."""
    values: list[Tensor]
    hidden: Tensor
    """The state that predicts the first token after the prompt: (hidden,)."""

    def __len__(self) -> int:
        return len(self.tokens)


Groups = Sequence[tuple[Prefix, int]]
"""Consecutive rows of a batch: a prefix, and how many rows follow it."""


def shared_prefix_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    groups: Groups | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention to the rows' own tokens and, if ``groups`` is given, to their prefixes.

    query: (rows, heads, new, dim); key, value: (rows, kv heads, own, dim), own >= new.
    """
    rows, heads, new, dim = query.shape
    kv_heads, own = key.shape[1], key.shape[2]
    shared = heads // kv_heads
    scaling = dim**-0.5 if scaling is None else scaling
    # Query heads that share a key head become one block of rows: (rows, kv heads, shared * new, dim).
    query = query.reshape(rows, kv_heads, shared * new, dim) * scaling
    scores = query @ key.transpose(2, 3)
    position = torch.arange(own - new, own, device=query.device).repeat(shared)[:, None]
    scores = scores + _bias(position - torch.arange(own, device=query.device), sliding_window, scores.dtype)
    outputs, start = [], 0
    if groups is None:
        return _output(_softmax(scores, softcap) @ value, heads), None
    for prefix, count in groups:
        part = slice(start, start + count)
        start += count
        layer = int(module.layer_idx)  # type: ignore[arg-type]
        past_keys, past_values = prefix.keys[layer], prefix.values[layer]
        past = past_keys.shape[1]
        # One product per key head for all rows of the group: no copy of the prefix for each row.
        folded = query[part].transpose(0, 1).reshape(kv_heads, count * shared * new, dim)
        past_scores = (folded @ past_keys.transpose(1, 2)).view(kv_heads, count, shared * new, past).transpose(0, 1)
        if sliding_window is not None:
            distance = position + past - torch.arange(past, device=query.device)
            past_scores = past_scores + _bias(distance, sliding_window, scores.dtype)
        weights = _softmax(torch.cat([past_scores, scores[part]], dim=-1), softcap)
        past_weights = weights[..., :past].transpose(0, 1).reshape(kv_heads, count * shared * new, past)
        read = (past_weights @ past_values).view(kv_heads, count, shared * new, dim).transpose(0, 1)
        outputs.append(read + weights[..., past:] @ value[part])
    return _output(torch.cat(outputs), heads), None


def _output(blocks: Tensor, heads: int) -> Tensor:
    """(rows, kv heads, shared * new, dim) to (rows, new, heads, dim)."""
    rows, kv_heads, height, dim = blocks.shape
    return blocks.reshape(rows, heads, height * kv_heads // heads, dim).transpose(1, 2).contiguous()


def _bias(distance: Tensor, window: int | None, dtype: torch.dtype) -> Tensor:
    """0 where a query may look (``distance`` is query minus key position), -inf elsewhere."""
    hidden = distance < 0
    if window is not None:
        hidden = hidden | (distance >= window)
    return torch.zeros(distance.shape, dtype=dtype, device=distance.device).masked_fill(hidden, -torch.inf)


def _softmax(scores: Tensor, softcap: float | None) -> Tensor:
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    return scores.softmax(dim=-1, dtype=torch.float32).to(scores.dtype)


AttentionInterface.register(NAME, shared_prefix_attention)


@contextmanager
def shared_prefixes(model: PreTrainedModel) -> Iterator[None]:
    """Let ``model`` use this attention inside the block; elsewhere it stays as the user set it."""
    config = model.config
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before
