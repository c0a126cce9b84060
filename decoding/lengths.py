"""Several lengths for one sample, the best of which is kept: a text's length need not be known beforehand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from decoding.methods import Decoder
from mucola.generations import Generation
from mucola.language_model import LanguageModel
from mucola.pool import Request


class BestLength:
    """A decoder that tries each request at every length."""

    def __init__(self, decoder: Decoder, language_model: LanguageModel, lengths: Sequence[int]) -> None:
        self.decoder = decoder
        self.language_model = language_model
        self.lengths = sorted(set(lengths))

    def run(self, requests: Iterable[Request], seed: int = 0) -> Iterator[Generation]:
        """The best of each request, once all its lengths are done."""
        tried: dict[tuple[str, int], list[Generation]] = {}
        wanted: dict[tuple[str, int], int] = {}

        def each_length() -> Iterator[Request]:
            for request in requests:
                fitting = self._fitting(request)
                wanted[request.prompt.id, request.sample] = len(fitting)
                yield from (replace(request, length=length) for length in fitting)

        for generation in self.decoder.run(each_length(), seed):
            key = (generation.prompt_id, generation.sample)
            tried.setdefault(key, []).append(generation)
            if len(tried[key]) == wanted[key]:
                del wanted[key]
                yield _best(tried.pop(key))

    def _fitting(self, request: Request) -> list[int]:
        """The lengths with room for what the constraints ask for; without any, the longest will say so."""
        least = request.least_tokens(self.language_model)
        return [length for length in self.lengths if length >= least] or self.lengths[-1:]


def _best(generations: Sequence[Generation]) -> Generation:
    """Verified before satisfied before neither; of equals the likeliest a token. Work is that of all lengths."""

    def rank(item: Generation) -> tuple[bool, bool, float]:
        length = len(item.tokens or ()) or 1
        return not item.verified, not item.satisfied, (item.nll or 0.0) / length

    best = min(generations, key=rank)
    for name in ("steps", "evaluations", "seconds", "restarts"):
        known = [getattr(item, name) for item in generations]
        setattr(best, name, None if None in known else sum(known))
    return best
