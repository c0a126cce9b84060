"""Batches of texts of similar length, the same whatever the number of devices, and resumable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

BUCKET = 50
"""How many batches' worth of shuffled texts are sorted by length together."""


class LengthBatches(Sampler[list[int]]):
    """Cuts an epoch into batches of texts of similar length, and gives each device its slice.

    The batches of an epoch depend on seed and epoch alone: device ``rank`` of ``world`` takes every
    ``world``-th text of the same global batch, so two devices train on what one would.
    """

    def __init__(self, lengths: list[int], batch_size: int, seed: int, shuffle: bool, rank: int, world: int) -> None:
        self.lengths = lengths
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.rank = rank
        self.world = world
        self.epoch = 0
        self.skip = 0
        self.sampler = self  # where Lightning looks for set_epoch

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        full, rest = divmod(len(self.lengths), self.batch_size)
        # In training a ragged rest is left out, another one each epoch: every step averages over a full batch.
        # In evaluation it is a batch of its own, unless some device would have no text of it.
        return full if self.shuffle or (full and rest < self.world) else full + 1

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self._batches()[self.skip :]:
            yield batch[self.rank :: self.world]

    def _batches(self) -> list[list[int]]:
        texts = len(self.lengths)
        if not self.shuffle:
            order = sorted(range(texts), key=self.lengths.__getitem__)
            starts = [self.batch_size * number for number in range(len(self))]
            return [order[a:b] for a, b in zip(starts, [*starts[1:], texts], strict=True)]
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + self.epoch)
        order = torch.randperm(texts, generator=generator).tolist()[: len(self) * self.batch_size]
        batches = []
        for start in range(0, len(order), BUCKET * self.batch_size):
            bucket = sorted(order[start : start + BUCKET * self.batch_size], key=self.lengths.__getitem__)
            batches += [bucket[i : i + self.batch_size] for i in range(0, len(bucket), self.batch_size)]
        return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


class ResumableLoader(DataLoader):
    """A loader that remembers in Lightning's checkpoints how far into the epoch it was."""

    batch_sampler: LengthBatches
    taken = 0
    start = 0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self.batch_sampler.skip = self.taken = self.start
        self.start = 0  # the next epoch is a whole one
        for batch in super().__iter__():
            self.taken += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Number of batches of this epoch that were handed out."""
        return {"taken": self.taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on behind the batches that were handed out; behind the last one a new epoch begins."""
        self.start = state["taken"] % len(self.batch_sampler)


def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Token ids padded on the right to the longest of the batch, their mask, and the labels."""
    tokens = [torch.tensor(row["tokens"]) for row in rows]
    mask = [torch.ones_like(text) for text in tokens]
    return {
        "tokens": torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True),
        "mask": torch.nn.utils.rnn.pad_sequence(mask, batch_first=True),
        "labels": torch.tensor([row["label"] for row in rows], dtype=torch.long),
    }
