"""Ways to make samples: MuCoLa here, and what it is compared with in ``decoding.baselines``.

A method is a handful of settings that a config can name; with a language model it becomes a decoder,
which turns requests into generations. All of them take the same requests and write the same records.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import ClassVar, Protocol

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

    follows_constraints: ClassVar[bool] = True
    """Whether the constraints steer; if not, they are only checked afterwards."""

    @abstractmethod
    def decoder(self, language_model: LanguageModel) -> Decoder:
        """Get ready to sample from a language model; raise ``MucolaError`` if the two cannot work together."""

    def sharing(self, most: int) -> Method:
        """The same, taking at most ``most`` requests at a time, so that no rank takes more than its share."""
        return self

    def steering(self) -> list[str]:
        """Names of the attribute models that steer, besides those in the constraints."""
        return []


class MuCoLa(Method):
    """Langevin dynamics on embeddings under Lagrange multipliers."""

    def __init__(self, sampling: Settings | None = None, trace: bool = False) -> None:
        """
        Args:
            sampling: How chains move and when they stop.
            trace: Keep every step of every chain, in the run's folder.
        """
        self.sampling = sampling or Settings()
        self.trace = trace
        self.most: int | None = None

    def sharing(self, most: int) -> Method:
        other = MuCoLa(self.sampling, self.trace)
        other.most = most
        return other

    def decoder(self, language_model: LanguageModel) -> Decoder:
        """The sampler, which is a decoder already."""
        sampler = Sampler(language_model, self.sampling, self.most)
        return _Traced(sampler) if self.trace else sampler


class _Traced:
    """A sampler that keeps the traces of its chains."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def run(self, requests: Iterable[Request], seed: int = 0) -> Iterator[Generation]:
        return self.sampler.run(requests, seed, trace=True)
