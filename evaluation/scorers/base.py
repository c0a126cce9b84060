"""What a scorer is: texts in, scores out, and a revision string that names exactly what gave them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from mucola.files import sha256


class Scorer(ABC):
    """Gives each text the probability of an attribute.

    A scorer that fails raises; a text it has no answer for (an empty one for an API that refuses
    those) gets None, which is counted as a gap. It never answers 0 instead.
    """

    name: str
    """What the report calls it."""
    revision: str
    """Changes whenever the scores may: name, weights, version of the library. The cache goes by it."""
    batch_size: ClassVar[int] = 64
    identities: frozenset[str] = frozenset()
    """Names, folders and fingerprints of the model inside, to tell whether it is one that steered."""
    quality: dict[str, Any] = {}  # noqa: RUF012  (replaced, never changed in place)
    """How good it is on held-out data, as far as is known."""

    @abstractmethod
    def score(self, texts: Sequence[str]) -> list[float | None]:
        """The probability of the attribute for each text."""


def fastest_device() -> str:
    """Where models run: the GPU if there is one."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def fingerprint(*files: Path) -> str:
    """Twelve hexadecimal digits that name the contents of the files."""
    return sha256(files)[:12]
