"""How samples look in a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from mucola.generations import ConstraintValue, Generation

if TYPE_CHECKING:
    from mucola.constraints import Constraint
    from mucola.sampler import Sampler

SOURCES = {
    "ancestral": ("plain sample that already satisfies everything", "green"),
    "draft": ("written by the language model, led by the constraints", "blue"),
    "langevin": ("made by the Langevin chain", "cyan"),
    "fallback": ("no satisfying text was found: the closest sample or draft", "yellow"),
}


def sample(generation: Generation, keywords: Iterable[str] = ()) -> RenderableType:
    """A sample in a frame."""
    _, colour = SOURCES.get(generation.source, ("", "white"))
    return Panel(cell(generation, keywords), border_style=colour)


def cell(generation: Generation, keywords: Iterable[str] = (), source: bool = True) -> RenderableType:
    """The text, what its constraints say of it, and where it came from."""
    text = Text(generation.prompt, style="dim")
    text.append(Text(_printable(generation.text), style="bold"))
    text.highlight_words(list(keywords), style="bold magenta", case_sensitive=False)
    facts = Table.grid(padding=(0, 2))
    for name, value in generation.values.items():
        facts.add_row(*constraint(name, value))
    parts: list[RenderableType] = [text, facts] if generation.values else [text]
    return Group(*parts, _origin(generation)) if source else Group(*parts)


def _origin(generation: Generation) -> Text:
    _, colour = SOURCES.get(generation.source, ("", "white"))
    text = Text(generation.source, style=colour)
    if generation.steps:
        text.append(f", {generation.steps} steps, {generation.evaluations} evaluations", style="dim")
    if generation.nll is not None and generation.tokens:
        text.append(f", {generation.nll / len(generation.tokens):.1f} nats a token", style="dim")
    return text


def judge(sampler: Sampler, generation: Generation, constraints: Sequence[Constraint]) -> None:
    """Let constraints that did not shape a text say what they think of it."""
    from mucola.prompts import Prompt
    from mucola.verification import check

    prompt = Prompt.of(generation.prompt, sampler.language_model)
    tokens = torch.tensor([generation.tokens], device=sampler.language_model.device)
    (found,) = check(sampler.language_model, [prompt], [constraints], tokens)
    for item, value in zip(constraints, found.values, strict=True):
        generation.values[item.name] = {"value": value, "threshold": item.threshold}


def constraint(name: str, value: ConstraintValue) -> tuple[Text, Text]:
    """A mark and the name, then the value in the user's terms."""
    holds = value["value"] <= value["threshold"]
    mark = Text("\u2713 " if holds else "\u2717 ", style="green" if holds else "red")
    return mark.append(name, style="default"), Text(reading(name, **value), style="dim")


def reading(name: str, value: float, threshold: float) -> str:
    """A value as people think of it: a probability for a classifier, a count for what must not be there.

    >>> reading("positive > 0.9", 0.105, 0.105), reading('exclude("war")', 2.0, 0.5), reading("mine", 1.5, 1.0)
    ('p = 0.90', '2 found', 'f = 1.50, limit 1.00')
    """
    if name.endswith(tuple("0123456789")) and " > " in name:
        return f"p = {math.exp(-value):.2f}"
    if name.endswith(tuple("0123456789")) and " < " in name:
        return f"p = {math.exp(value):.3f}"
    if name.startswith(("exclude", "no_repetition")):
        return f"{value:.0f} found"
    return f"f = {value:.2f}, limit {threshold:.2f}"


def legend(samples: Sequence[Generation]) -> Text:
    """What the sources mean that occur in ``samples``."""
    text = Text()
    for source in sorted({item.source for item in samples}):
        meaning, colour = SOURCES.get(source, (source, "white"))
        text.append(source, style=colour).append(f": {meaning}\n", style="dim")
    return text


def _printable(text: str) -> str:
    return text.replace("\n", "\u21b5")
