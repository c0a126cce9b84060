"""The record of a chain, step by step: to look at, to plot, to keep."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mucola.langevin import Chain, Info, State


@dataclass
class Step:
    """A chain after one step; the first is where it started."""

    tokens: list[int]
    nll: float
    values: list[float]
    multipliers: list[float]
    noise: float
    step_size: float
    satisfied: bool


@dataclass
class Trace:
    """One chain from its start to where it stopped."""

    prompt: str
    sample: int
    restart: int
    constraints: list[str]
    thresholds: list[float]
    steps: list[Step] = field(default_factory=list)
    token_texts: dict[int, str] = field(default_factory=dict)
    """The text of every token that was visited."""

    def record(self, chain: Chain, state: State, row: int, info: Info | None, texts: Sequence[str]) -> None:
        """Add the state of ``row``."""
        count = len(chain.constraints)
        tokens = state.tokens[row].tolist()
        self.token_texts.update((token, texts[token]) for token in tokens)
        self.steps.append(
            Step(
                tokens,
                state.nll[row].item(),
                state.values[row, :count].tolist(),
                state.multipliers[row, :count].tolist(),
                info.noise[row].item() if info else 0.0,
                info.step_size[row].item() if info else 0.0,
                bool(state.satisfied[row]),
            )
        )

    def save(self, path: Path) -> None:
        """Write compressed JSON; an infinite or undefined number is written as null."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt", encoding="utf-8") as file:
            json.dump(_without_infinities(asdict(self)), file)

    @classmethod
    def load(cls, path: Path) -> Trace:
        """Read what ``save`` wrote."""
        with gzip.open(path, "rt", encoding="utf-8") as file:
            found = json.load(file)
        found["steps"] = [Step(**step) for step in found["steps"]]
        found["token_texts"] = {int(token): text for token, text in found["token_texts"].items()}
        return cls(**found)

    def plot(self, path: Path) -> None:
        """Draw energy, constraints, multipliers and movement over the steps."""
        from matplotlib.figure import Figure

        length = len(self.steps[0].tokens)
        figure = Figure(figsize=(8, 7.5), layout="constrained")
        axes = figure.subplots(4, 1, sharex=True)
        axes[0].plot([step.nll / length for step in self.steps], color="black")
        axes[0].set_ylabel("NLL a token")
        for index, name in enumerate(self.constraints):
            (line,) = axes[1].plot([step.values[index] - self.thresholds[index] for step in self.steps], label=name)
            axes[2].plot([step.multipliers[index] for step in self.steps], color=line.get_color())
        axes[1].axhline(0, color="grey", linewidth=0.8)
        axes[1].set_ylabel("f - threshold")
        axes[2].set_ylabel("multiplier")
        if self.constraints:
            axes[1].legend(fontsize=8)
        moves = [
            sum(a != b for a, b in zip(before.tokens, after.tokens, strict=True)) / length
            for before, after in zip(self.steps, self.steps[1:], strict=False)
        ]
        axes[3].bar(range(1, len(self.steps)), moves, width=1.0, color="grey")
        axes[3].set_ylabel("share of tokens moved")
        axes[3].set_xlabel("step")
        figure.suptitle(f"{self.prompt!r}, sample {self.sample}", fontsize=10)
        figure.savefig(path, dpi=120)


def _without_infinities(value: object) -> object:
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {key: _without_infinities(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_infinities(item) for item in value]
    return value
