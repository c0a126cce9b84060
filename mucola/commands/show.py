"""How samples look in a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from mucola.generations import ConstraintValue, Generation

SOURCES = {
    "ancestral": ("plain sample that already satisfies everything", "green"),
    "langevin": ("made by the Langevin chain", "cyan"),
    "fallback": ("no satisfying text was found: a plain sample", "yellow"),
}


def sample(generation: Generation, keywords: Iterable[str] = ()) -> RenderableType:
    """A sample with where it came from and what its constraints say."""
    text = Text(generation.prompt, style="dim")
    text.append(Text(_printable(generation.text), style="bold"))
    text.highlight_words(list(keywords), style="bold magenta", case_sensitive=False)
    _, colour = SOURCES.get(generation.source, ("", "white"))
    facts = Table.grid(padding=(0, 2))
    for name, value in generation.values.items():
        facts.add_row(*constraint(name, value))
    subtitle = f"{generation.source}"
    if generation.steps:
        subtitle += f", {generation.steps} steps, {generation.evaluations} evaluations"
    if generation.nll is not None and generation.tokens:
        subtitle += f", {generation.nll / len(generation.tokens):.1f} nats a token"
    return Panel(
        Group(text, facts) if generation.values else text, border_style=colour, subtitle=subtitle, subtitle_align="left"
    )


def constraint(name: str, value: ConstraintValue) -> tuple[Text, Text]:
    """A mark and the name, then the value in the user's terms."""
    holds = value["value"] <= value["threshold"]
    mark = Text("\u2713 " if holds else "\u2717 ", style="green" if holds else "red")
    return mark.append(name, style="default"), Text(reading(name, value["value"]), style="dim")


def reading(name: str, value: float) -> str:
    """A value as people think of it: a probability for a classifier, there or not for a keyword.

    >>> reading("positive > 0.9", 0.105)
    'p = 0.90'
    """
    if name.endswith(tuple("0123456789")) and " > " in name:
        return f"p = {math.exp(-value):.2f}"
    if name.endswith(tuple("0123456789")) and " < " in name:
        return f"p = {math.exp(value):.3f}"
    if name.startswith("keyword"):
        return f"distance {value:.1f}"
    return f"{value:+.2f}"


def legend(samples: Sequence[Generation]) -> Text:
    """What the sources mean that occur in ``samples``."""
    text = Text()
    for source in sorted({item.source for item in samples}):
        meaning, colour = SOURCES.get(source, (source, "white"))
        text.append(source, style=colour).append(f": {meaning}\n", style="dim")
    return text


def mean_reading(samples: Sequence[Generation], name: str) -> str:
    """The average of a constraint's value over samples, in the user's terms."""
    values: list[Mapping[str, ConstraintValue]] = [item.values for item in samples]
    return reading(name, sum(value[name]["value"] for value in values) / len(values))


def _printable(text: str) -> str:
    return text.replace("\n", "\u21b5")
