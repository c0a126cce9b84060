"""Ways to make samples: MuCoLa here, and what it is compared with in ``decoding.baselines``.

A method is a handful of settings that a config can name; with a language model it becomes a decoder,
which turns requests into generations. All of them take the same requests and write the same records.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Protocol

from mucola.generations import Generation
from mucola.language_model import LanguageModel
from mucola.pool import Request
from mucola.sampler import Sampler
from mucola.settings import Settings


class Decoder(Protocol):
    """Makes a generation of every request."""

    def run(self, requests: Iterable[Request], seed: int = 0) -> Iterator[Generation]:
        """Generations in the order in which they are finished; requests are taken as there is room.

        What becomes of a request depends on the seed, its prompt's id and its sample number alone.
        """
        ...


class Method(ABC):
    """A way to make samples, as a config names it."""

    @abstractmethod
    def decoder(self, language_model: LanguageModel) -> Decoder:
        """Get ready to sample from a language model; raise ``MucolaError`` if the two cannot work together."""

    def steering(self) -> list[str]:
        """Names of the attribute models that steer, besides those in the constraints."""
        return []


class MuCoLa(Method):
    """Langevin dynamics on embeddings under Lagrange multipliers."""

    def __init__(self, sampling: Settings | None = None) -> None:
        self.sampling = sampling or Settings()

    def decoder(self, language_model: LanguageModel) -> Decoder:
        """The sampler, which is a decoder already."""
        return Sampler(language_model, self.sampling)
