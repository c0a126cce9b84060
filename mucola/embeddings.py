"""The table E of token embeddings that the language model and every constraint model share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

CHUNK_BYTES = 256 * 2**20
"""The most that one block of a (vectors, vocabulary) product may take."""
CACHED_BYTES = 3 * 2**20
"""The part of a table that a CPU works on at a time: small enough to stay in its cache with what comes of it."""

Banned = Sequence[Tensor | None] | None


def fingerprint(weight: Tensor) -> str:
    """A short name for the content of a table, the same whichever precision it was loaded in.

    >>> fingerprint(torch.eye(3)) == fingerprint(torch.eye(3).bfloat16()) != fingerprint(torch.eye(4))
    True
    """
    rounded = weight.detach().to("cpu", torch.bfloat16).contiguous()
    digest = hashlib.sha256(str(tuple(rounded.shape)).encode())
    digest.update(rounded.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def blocks(table: Tensor, vectors: int) -> Iterator[slice]:
    """The rows that so many vectors are multiplied with at a time: what a CPU caches, else what memory allows."""
    on_cpu = table.device.type == "cpu"
    rows = max(1, CACHED_BYTES // (4 * table.shape[1]) if on_cpu else CHUNK_BYTES // (4 * vectors))
    return (slice(start, start + rows) for start in range(0, len(table), rows))


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

    def nearest(self, embeddings: Tensor, banned: Banned = None) -> Tensor:
        """The allowed token whose row is closest, ties to the lowest id: (rows, length, dim) to (rows, length).

        ``banned`` has token ids that a row may not use, or None for a row that may use all.
        """
        return self._nearest(embeddings, banned)[0]

    def nearest_and_margin(self, embeddings: Tensor, tokens: Tensor, banned: Banned = None) -> tuple[Tensor, Tensor]:
        """The nearest tokens, and by how much (half the squared distance) they are closer than ``tokens`` are."""
        nearest, score = self._nearest(embeddings, banned)
        current = (embeddings * self.rows(tokens)).sum(dim=-1) + self._offset[tokens]
        return nearest, score - current

    def _nearest(self, embeddings: Tensor, banned: Banned) -> tuple[Tensor, Tensor]:
        rows, length, _ = embeddings.shape
        vectors, offsets = embeddings.float().flatten(0, 1), self._offsets(banned)
        best = vectors.new_full((rows, length), -torch.inf)
        tokens = torch.zeros((rows, length), dtype=torch.long, device=vectors.device)
        for block in blocks(self.weight, len(vectors)):
            scores = (vectors @ self.weight[block].T).view(rows, length, -1).add_(offsets[:, None, block])
            score, token = scores.max(dim=-1)
            tokens = torch.where(score > best, block.start + token, tokens)
            best = torch.maximum(score, best)
        return tokens, best

    def _offsets(self, banned: Banned) -> Tensor:
        """What is added to e.E_v: (1, vocabulary), or (rows, vocabulary) if rows differ in what they may use."""
        if banned is None:
            return self._offset[None]
        offsets = self._offset.repeat(len(banned), 1)
        for row, ids in enumerate(banned):
            if ids is not None:
                offsets[row, ids] = -torch.inf
        return offsets

    @property
    def block_rows(self) -> int:
        """How many vectors are compared with the whole table at a time."""
        return max(1, CHUNK_BYTES // (4 * len(self)))

    @cached_property
    def nearest_distance(self) -> float:
        """Median distance from a row to its nearest other row, over a fixed sample of allowed rows."""
        candidates = self.allowed.nonzero().squeeze(1)
        sample = candidates[:: max(1, len(candidates) // 512)]
        return (self.weight[sample] - self.weight[self._neighbours(sample, 1)[:, 0]]).norm(dim=1).median().item()

    def _neighbours(self, tokens: Tensor, count: int) -> Tensor:
        """The ``count`` nearest other allowed tokens of each: (n,) to (n, count)."""
        found = []
        for block in tokens.split(self.block_rows):
            scores = torch.addmm(self._offset, self.weight[block], self.weight.T)
            scores = scores.scatter_(1, block[:, None], -torch.inf)
            found.append(scores.topk(min(count, len(self) - 1), dim=1).indices)
        return torch.cat(found)

    # --- what keyword, exclusion and repetition constraints need to know about a row -------------------
    # Chains stand on rows, so these are functions of the token alone and are worked out once for each
    # token that is visited.

    def soft_neighbourhood(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Normaliser and mean of pi = softmax_v(-|E_token - E_v|^2): (...) to (...), (..., dim)."""
        both = self._soft_neighbourhood.of(tokens)
        return both[..., 0], both[..., 1:]

    def way_out(self, tokens: Tensor) -> Tensor:
        """The vector d along which a token leaves its row: (...) to (..., dim).

        ``d . e`` falls by 1 on the way from the row to the mean of its nearest other rows.
        """
        return self._way_out.of(tokens)

    @cached_property
    def _soft_neighbourhood(self) -> _Remembered:
        norms = self.weight.square().sum(dim=1)

        def work_out(tokens: Tensor) -> Tensor:
            found = []
            for block in tokens.split(self.block_rows):
                scores = torch.addmm(-norms, self.weight[block], self.weight.T, alpha=2)  # lacks -|E_token|^2
                total = scores.logsumexp(dim=1, keepdim=True)
                mean = scores.sub_(total).exp_() @ self.weight
                found.append(torch.cat([total - norms[block, None], mean], dim=1))
            return torch.cat(found)

        return _Remembered(len(self), self.dim + 1, self.weight.device, work_out)

    @cached_property
    def _way_out(self) -> _Remembered:
        def work_out(tokens: Tensor) -> Tensor:
            way = self.weight[tokens] - self.weight[self._neighbours(tokens, 8)].mean(dim=1)
            return way / way.square().sum(dim=1, keepdim=True).clamp(min=1e-12)

        return _Remembered(len(self), self.dim, self.weight.device, work_out)


class _Remembered:
    """A function of a token that is computed the first time the token is asked for."""

    def __init__(self, size: int, width: int, device: torch.device, work_out: Callable[[Tensor], Tensor]) -> None:
        self._known = torch.zeros(size, dtype=torch.bool, device=device)
        self._values = torch.empty((size, width), device=device)
        self._work_out = work_out

    def of(self, tokens: Tensor) -> Tensor:
        new = tokens[~self._known[tokens]].unique()
        if len(new):
            self._values[new] = self._work_out(new)
            self._known[new] = True
        return self._values[tokens]


def writable_tokens(tokenizer: Any, size: int) -> Tensor:
    """Which ids a chain may use: those whose text the tokenizer encodes back to the same single id.

    That leaves out special tokens, pieces of characters, and rows that the tokenizer never writes.
    """
    allowed = torch.zeros(size, dtype=torch.bool)
    ids = list(range(min(size, len(tokenizer))))
    texts = tokenizer.batch_decode([[i] for i in ids], clean_up_tokenization_spaces=False)
    encoded = tokenizer(texts, add_special_tokens=False).input_ids
    added = getattr(tokenizer, "added_tokens_decoder", {})  # markers such as <filename> are special without a role
    special = {*tokenizer.all_special_ids, *(i for i, token in added.items() if token.special)}
    for i, text, back in zip(ids, texts, encoded, strict=True):
        allowed[i] = back == [i] and i not in special and text.isprintable() | (text == "\n")
    return allowed
