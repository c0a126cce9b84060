"""The table E of token embeddings that the language model and every constraint model share."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

CHUNK_BYTES = 256 * 2**20
"""The most that one block of a (vectors, vocabulary) product may take."""


def fingerprint(weight: Tensor) -> str:
    """A short name for the content of a table, the same whichever precision it was loaded in.

    >>> fingerprint(torch.eye(3)) == fingerprint(torch.eye(3).bfloat16()) != fingerprint(torch.eye(4))
    True
    """
    rounded = weight.detach().to("cpu", torch.bfloat16).contiguous()
    digest = hashlib.sha256(str(tuple(rounded.shape)).encode())
    digest.update(rounded.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


class EmbeddingTable:
    """The rows a chain may stand on, and how to get back to them.

    ``weight`` is kept in fp32. When the model's input and output tables are one (most models), it is
    that table. When they differ, a row is the input row followed by the output row of the same token,
    so that a gradient from either role moves the token; ``input_part`` cuts out what models read.
    Tokens outside ``allowed`` are never produced.
    """

    def __init__(self, weight: Tensor, allowed: Tensor, input_dim: int | None = None) -> None:
        self.weight = weight.detach().float()
        self.allowed = allowed.to(self.weight.device)
        self.input_dim = input_dim or weight.shape[1]
        # argmin |e - E_v|^2 = argmax (e.E_v - |E_v|^2 / 2); a banned row can never be the largest.
        self._offset = -0.5 * self.weight.square().sum(dim=1)
        self._offset = self._offset.masked_fill(~self.allowed, -torch.inf)

    def __len__(self) -> int:
        return self.weight.shape[0]

    @property
    def dim(self) -> int:
        """Width of a row."""
        return self.weight.shape[1]

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the input table, which constraint checkpoints are tied to."""
        return fingerprint(self.weight[:, : self.input_dim])

    def rows(self, tokens: Tensor) -> Tensor:
        """The embeddings of ``tokens``: (...) to (..., dim)."""
        return self.weight[tokens]

    def input_part(self, embeddings: Tensor) -> Tensor:
        """What models read of a row: (..., dim) to (..., input_dim)."""
        return embeddings[..., : self.input_dim]

    def nearest(self, embeddings: Tensor) -> Tensor:
        """The allowed token whose row is closest, ties to the lowest id: (..., dim) to (...)."""
        flat = embeddings.reshape(-1, self.dim).float()
        tokens = [self._scores(block).argmax(dim=1) for block in flat.split(self.block_rows)]
        return torch.cat(tokens).reshape(embeddings.shape[:-1])

    def _scores(self, vectors: Tensor) -> Tensor:
        return torch.addmm(self._offset, vectors, self.weight.T)

    @property
    def block_rows(self) -> int:
        """How many vectors are compared with the whole table at a time."""
        return max(1, CHUNK_BYTES // (4 * len(self)))

    @cached_property
    def nearest_distance(self) -> float:
        """Median distance from a row to its nearest other row, over a fixed sample of allowed rows."""
        candidates = self.allowed.nonzero().squeeze(1)
        sample = candidates[:: max(1, len(candidates) // 512)]
        nearest = []
        for block in sample.split(self.block_rows):
            scores = self._scores(self.weight[block])
            scores.scatter_(1, block[:, None], -torch.inf)
            other = self.weight[scores.argmax(dim=1)]
            nearest.append((self.weight[block] - other).norm(dim=1))
        return torch.cat(nearest).median().item()


def writable_tokens(tokenizer: Any, size: int) -> Tensor:
    """Which ids a chain may use: those whose text the tokenizer encodes back to the same single id.

    That leaves out special tokens, pieces of characters, and rows that the tokenizer never writes.
    """
    allowed = torch.zeros(size, dtype=torch.bool)
    ids = list(range(min(size, len(tokenizer))))
    texts = tokenizer.batch_decode([[i] for i in ids], clean_up_tokenization_spaces=False)
    encoded = tokenizer(texts, add_special_tokens=False).input_ids
    special = set(tokenizer.all_special_ids)
    for i, text, back in zip(ids, texts, encoded, strict=True):
        allowed[i] = back == [i] and i not in special and text.isprintable() | (text == "\n")
    return allowed
