"""What all baselines share: requests go in batches of one length, tokens come out, and are checked like any others."""

from __future__ import annotations

import copy
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import ClassVar

import torch
from torch import Tensor

from decoding.methods import Decoder, Method
from mucola.errors import MucolaError
from mucola.generations import Generation
from mucola.language_model import LanguageModel
from mucola.memory import Room
from mucola.pool import Request
from mucola.verification import Check, check

Write = Callable[[Sequence[Request], int], Tensor]
"""From requests of one length and a seed to their tokens: (requests, length)."""


class Baseline(Method):
    """A method that writes requests batch by batch."""

    name: ClassVar[str]
    """The ``source`` of its generations."""

    def __init__(self, batch_size: int) -> None:
        if batch_size < 1:
            raise MucolaError(f"batch_size must be at least 1, not {batch_size}.")
        self.batch_size = batch_size

    @abstractmethod
    def writer(self, language_model: LanguageModel) -> Write:
        """Load what is needed, and return the function that writes a batch."""

    def sharing(self, most: int) -> Baseline:
        """The same with batches of at most ``most``."""
        other = copy.copy(self)
        other.batch_size = max(1, min(self.batch_size, most))
        return other

    def decoder(self, language_model: LanguageModel) -> Decoder:
        """Get ready to write with a language model."""
        return BatchDecoder(self.name, language_model, self.writer(language_model), self.batch_size)


class BatchDecoder:
    """Takes requests as they come, has them written in batches, and checks what was written."""

    def __init__(self, name: str, language_model: LanguageModel, write: Write, batch_size: int) -> None:
        self.name = name
        self.language_model = language_model
        self.write = write
        self.room = Room(batch_size)

    def run(self, requests: Iterable[Request], seed: int = 0) -> Iterator[Generation]:
        """A generation of every request; the company it is written in does not change it."""
        source = iter(requests)
        while batch := list(islice(source, self.room.size)):
            for request in batch:
                request.prepare(self.language_model)
            for length in sorted({request.length for request in batch}):
                same = [request for request in batch if request.length == length]
                before = time.perf_counter()
                tokens = self._write(same, seed)
                seconds = (time.perf_counter() - before) / len(same)
                prompts, constraints = [item.prompt for item in same], [item.constraints for item in same]
                for request, found in zip(same, check(self.language_model, prompts, constraints, tokens), strict=True):
                    yield self._generation(request, found, seed, seconds)

    def _write(self, requests: Sequence[Request], seed: int) -> Tensor:
        """As many at once as memory allows."""
        parts = self.room.parts(len(requests), lambda rows: self.write(requests[rows.start : rows.stop], seed))
        return torch.cat(parts)

    def _generation(self, request: Request, found: Check, seed: int, seconds: float) -> Generation:
        pairs = zip(request.constraints, found.values, strict=True)
        return Generation(
            prompt_id=request.prompt.id,
            prompt=request.prompt.text,
            sample=request.sample,
            text=found.text,
            source=self.name,
            tokens=found.tokens,
            satisfied=found.satisfied,
            verified=found.verified,
            values={item.name: {"value": value, "threshold": item.threshold} for item, value in pairs},
            nll=found.nll,
            seed=seed,
            seconds=seconds,
        )
