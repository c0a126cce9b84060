"""What a user may set about sampling, with the paper's values as defaults where they do not depend on the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from mucola.errors import MucolaError
from mucola.lagrangian import Ascent
from mucola.schedules import Noise, StepSize

Mode = Literal["fast", "faithful"]
Start = Literal["random", "nucleus", "greedy", "zeros"]


@dataclass(frozen=True)
class Settings:
    """How samples are made.

    ``fast`` draws nucleus samples first and keeps one that satisfies everything, which is then an exact
    sample; only where none does, a chain starts from the best of them. ``faithful`` is the paper: every
    sample is a chain from random tokens.
    """

    mode: Mode = "fast"
    steps: int = 250
    """The most steps a chain takes."""
    restarts: int = 1
    """How often a chain that found nothing begins anew, before the fallback."""
    proposals: int = 256
    """``fast``: the most nucleus samples drawn for one output. By the logs of a few runs a chain costs as much as 200
    to 500 of them, so by then about as much has been spent as a chain takes, and hardly ever twice what was needed.
    With pairs of language models 32, and then drafts that the pair leads; at most 32 mean that none are written."""
    nucleus: float = 0.96
    """Probability mass that nucleus samples are drawn from."""
    start: Start | None = None
    """Where chains begin; by default at random tokens when ``faithful``, at the best proposal when ``fast``."""
    batch_size: int | None = None
    """Chains that advance together, as many as memory allows by default; one that finishes makes room for the next."""
    step_size: StepSize | None = None
    """By default what suits the model, see ``mucola.calibration``."""
    noise: Noise | None = None
    ascent: Ascent | None = None
    moves: int | None = None
    """The most tokens that change in one step; by default any number when ``faithful``, a few when ``fast``."""

    def __post_init__(self) -> None:
        for name, known in (("mode", get_args(Mode)), ("start", (*get_args(Start), None))):
            if getattr(self, name) not in known:
                choices = ", ".join(str(choice) for choice in known if choice)
                raise MucolaError(f"The {name} is one of {choices}, not {getattr(self, name)!r}.")
        for name, least in (("steps", 1), ("restarts", 0), ("proposals", 1), ("batch_size", 1)):
            if (value := getattr(self, name)) is not None and value < least:
                raise MucolaError(f"{name} must be at least {least}, not {value}.")
        if not 0 <= self.nucleus <= 1:
            raise MucolaError(f"The nucleus is a probability between 0 and 1, not {self.nucleus}.")
