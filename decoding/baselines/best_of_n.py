"""Plain samples, of which the one that satisfies the constraints best is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from decoding.baselines.batches import Baseline, Write
from mucola.errors import MucolaError
from mucola.language_model import LanguageModel
from mucola.pool import Request
from mucola.randomness import stream
from mucola.verification import Check, check

Pick = Literal["best", "first"]


class BestOfN(Baseline):
    """Draws nucleus samples and keeps one of them.

    Args:
        n: how many samples to draw for one output.
        pick: ``best`` keeps the one that is verified, then closest to satisfying everything, then likeliest;
            ``first`` is rejection sampling, it keeps the first that is verified, and the best if none is.
        nucleus: probability mass to sample from.
        batch_size: samples that are drawn together.
    """

    name = "best_of_n"

    def __init__(self, n: int = 25, pick: Pick = "best", nucleus: float = 0.96, batch_size: int = 32) -> None:
        super().__init__(batch_size)
        if n < 1:
            raise MucolaError(f"The best of {n} samples is none; n must be at least 1.")
        if pick not in get_args(Pick):
            raise MucolaError(f"pick is one of {', '.join(get_args(Pick))}, not {pick!r}.")
        self.n, self.pick, self.nucleus = n, pick, nucleus

    def writer(self, language_model: LanguageModel) -> Write:
        def write(requests: Sequence[Request], seed: int) -> Tensor:
            drawn = self._draw(language_model, requests, seed)
            kept = [self._keep(request, checks) for request, checks in zip(requests, drawn, strict=True)]
            return torch.tensor([item.tokens for item in kept], device=language_model.device)

        return write

    def _draw(self, language_model: LanguageModel, requests: Sequence[Request], seed: int) -> list[list[Check]]:
        """Samples of each request, in the order in which its own stream gives them."""
        streams = [stream(seed, item.prompt.id, item.sample, self.name) for item in requests]
        drawn: list[list[Check]] = [[] for _ in requests]
        while open_ := [row for row in range(len(requests)) if not self._enough(drawn[row])]:
            each = max(1, self.batch_size // len(open_))
            rows = [row for row in open_ for _ in range(min(each, self.n - len(drawn[row])))]
            uniforms = [torch.rand(requests[row].length, generator=streams[row]) for row in rows]
            asked = [requests[row] for row in rows]
            prefixes = [language_model.prefix(item.prompt.tokens) for item in asked]
            prompts, constraints = [item.prompt for item in asked], [item.constraints for item in asked]
            written = language_model.continuations(prefixes, torch.stack(uniforms), self.nucleus)
            found = check(language_model, prompts, constraints, *written)
            for row, checked in zip(rows, found, strict=True):
                drawn[row].append(checked)
        return drawn

    def _enough(self, drawn: list[Check]) -> bool:
        return len(drawn) >= self.n or (self.pick == "first" and any(item.verified for item in drawn))

    def _keep(self, request: Request, drawn: list[Check]) -> Check:
        if self.pick == "first":
            verified = [item for item in drawn if item.verified]
            if verified:
                return verified[0]
        return min(drawn, key=lambda item: (not item.verified, item.rank(request.constraints)))
