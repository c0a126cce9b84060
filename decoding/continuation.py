"""Plain nucleus sampling after the constrained part, up to a total length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from decoding.methods import Decoder
from mucola.generations import Generation
from mucola.language_model import LanguageModel
from mucola.pool import Request
from mucola.prompts import Prompt, continuation_text
from mucola.randomness import stream
from mucola.verification import check

TOGETHER = 16
DRAWS = 4
"""How often a continuation is drawn anew that breaks what held before it, such as "beach" becoming "beaches"."""


class Continued:
    """A decoder whose texts go on, unconstrained, until they have ``total`` tokens.

    The record keeps source, satisfaction and values of the constrained part, and its length in
    ``constrained``; text, tokens and NLL are those of the whole, and so is ``verified``.
    """

    def __init__(self, decoder: Decoder, language_model: LanguageModel, total: int, nucleus: float) -> None:
        self.decoder = decoder
        self.language_model = language_model
        self.total = total
        self.nucleus = nucleus

    def run(self, requests: Iterable[Request], seed: int = 0) -> Iterator[Generation]:
        """Each generation of the decoder, continued; a few at a time."""
        taken: dict[tuple[str, int], Request] = {}

        def remembered() -> Iterator[Request]:
            for request in requests:
                request.prompt.require_room(self.total, self.language_model)
                taken[request.prompt.id, request.sample] = request
                yield request

        waiting: list[Generation] = []
        for generation in self.decoder.run(remembered(), seed):
            waiting.append(generation)
            if len(waiting) == TOGETHER:
                yield from self._continue(waiting, taken, seed)
                waiting = []
        if waiting:
            yield from self._continue(waiting, taken, seed)

    def _continue(
        self, generations: Sequence[Generation], taken: dict[tuple[str, int], Request], seed: int
    ) -> Iterator[Generation]:
        requests = [taken.pop((item.prompt_id, item.sample)) for item in generations]
        streams = [stream(seed, item.prompt_id, item.sample, "continuation") for item in generations]
        open_ = list(range(len(generations)))
        done: dict[int, Generation] = {}
        for _ in range(DRAWS):
            drawn = self._draw([generations[at] for at in open_], [requests[at].prompt for at in open_], streams, open_)
            for at, tokens in zip(open_, drawn, strict=True):
                done[at] = self._record(generations[at], requests[at], tokens)
            open_ = [at for at in open_ if generations[at].verified and not done[at].verified]
            if not open_:
                break
        yield from (done[at] for at in range(len(generations)))

    def _draw(
        self,
        generations: Sequence[Generation],
        prompts: Sequence[Prompt],
        streams: Sequence[torch.Generator],
        at: Sequence[int],
    ) -> list[list[int]]:
        """The whole of each text: its tokens and those drawn after them."""
        known = [list(item.tokens or ()) for item in generations]
        missing = [max(0, self.total - len(tokens)) for tokens in known]
        if not any(missing):
            return known
        uniforms = torch.stack([torch.rand(self.total, generator=streams[row]) for row in at])[:, : max(missing)]
        contexts = [(*prompt.tokens, *tokens) for prompt, tokens in zip(prompts, known, strict=True)]
        prefixes = [self.language_model.prefix(context) for context in contexts]
        drawn = self.language_model.continuations(prefixes, uniforms, self.nucleus).tokens.tolist()
        return [tokens + row[:more] for tokens, row, more in zip(known, drawn, missing, strict=True)]

    def _record(self, generation: Generation, request: Request, tokens: list[int]) -> Generation:
        ids = torch.tensor([tokens], device=self.language_model.device)
        (found,) = check(self.language_model, [request.prompt], [request.constraints], ids)
        return replace(
            generation,
            text=continuation_text(self.language_model, request.prompt, tokens),
            tokens=tokens,
            nll=found.nll,
            verified=found.verified,
            constrained=len(generation.tokens or ()),
        )
