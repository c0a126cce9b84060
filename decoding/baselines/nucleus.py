"""Plain samples: of the language model itself, and of one trained on texts of the wanted class (DAPT)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from decoding.baselines.attribute import load_adapted
from decoding.baselines.left_to_right import LeftToRight
from mucola.language_model import LanguageModel


class Nucleus(LeftToRight):
    """Unconstrained nucleus sampling (Holtzman et al. 2020, arXiv 1904.09751).

    Args:
        nucleus: probability mass to sample from; 0.96 is what MuCoLa itself falls back to.
        batch_size: samples that are written together.
    """

    name = "nucleus"

    def __init__(self, nucleus: float = 0.96, batch_size: int = 32) -> None:
        super().__init__(nucleus, 0, batch_size)


class DAPT(LeftToRight):
    """Samples of a language model that was trained on texts of one class (Gururangan et al. 2020, arXiv 2004.10964).

    Args:
        model: ``class_lm`` checkpoint of the wanted class.
        nucleus: probability mass to sample from; 0.9 as in the comparison of DExperts (arXiv 2105.03023).
        batch_size: samples that are written together.
    """

    name = "dapt"

    def __init__(self, model: str, nucleus: float = 0.9, batch_size: int = 32) -> None:
        super().__init__(nucleus, 0, batch_size)
        self.model = model

    def steering(self) -> list[str]:
        return [self.model]

    def active(self, language_model: LanguageModel) -> Callable[[], AbstractContextManager[Any]]:
        return load_adapted(self.model, "class_lm", language_model).active
