"""``mucola demo``: plain samples of a real language model beside constrained ones."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from mucola.cli import parser

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from mucola.constraints import Constraint
    from mucola.generations import Generation
    from mucola.sampler import Sampler

MODEL = "smollm2-135m"
SAMPLES = 3
STEPS = 120
"""Fewer than by default: nobody wants to wait for a chain that does not settle."""


class Options(Protocol):
    """What the command line sets."""

    prompt: str
    keyword: str
    length: int
    seed: int


def command(arguments: Sequence[str]) -> None:
    """Entry point of ``mucola demo``."""
    made = parser("demo", "See plain samples of SmolLM2-135M beside samples under constraints (about two minutes).")
    made.add_argument("--prompt", type=str, default="The road", help="the text to continue")
    made.add_argument("--keyword", type=str, default="beach", help="a word that must appear")
    made.add_argument("--length", type=int, default=14, help="tokens in each continuation")
    made.add_argument("--seed", type=int, default=0)
    options = made.parse_args(list(arguments))

    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from mucola import model_store
    from mucola.constraints import classifier, exclude, keyword
    from mucola.sampler import load
    from mucola.settings import Settings

    console = Console(width=None if sys.stdout.isatty() else 100)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    one_line = exclude("\n")
    parts = [
        ("Positive in tone", [classifier("positive") > 0.9, one_line]),
        (f"With the word \u201c{options.keyword}\u201d", [keyword(options.keyword), one_line]),
        ("Not toxic", [classifier("toxic") < 0.01, one_line]),
    ]
    with Progress(*columns, transient=True, disable=not sys.stdout.isatty(), console=console) as bar:
        fetched = model_store.cached_path(MODEL) is not None
        total = 1 + 2 * SAMPLES * len(parts)
        shown = bar.add_task(f"loading {MODEL}" if fetched else f"fetching {MODEL}, once", total=total)
        sampler = load(MODEL, Settings(steps=STEPS))
        bar.advance(shown)
        _introduce(console, options.prompt, options.length)
        for title, constraints in parts:
            bar.update(shown, description=title)
            _part(console, bar, shown, sampler, options, title, constraints)
    console.print(
        '[dim]Go on:[/] mucola sample "The lake" --positive 0.9 --keyword boat   [dim]|[/]   mucola sample --help'
    )


def _introduce(console: Console, prompt: str, length: int) -> None:
    from rich.markup import escape
    from rich.panel import Panel

    text = (
        f"SmolLM2-135M continues [bold]{escape(repr(prompt))}[/] with {length} tokens: on the left as it likes,\n"
        "on the right under a constraint. Nothing was fine-tuned; the sampler does it, and says how it got each text."
    )
    console.print(Panel(text, title="mucola", border_style="blue"))


def _part(
    console: Console,
    bar: Progress,
    shown: TaskID,
    sampler: Sampler,
    options: Options,
    title: str,
    constraints: list[Constraint],
) -> None:
    """One constraint: sample without and with it, and set the two side by side."""
    from rich.table import Table
    from rich.text import Text

    from mucola.commands import show

    sides: list[list[Generation]] = []
    for wanted in ([], constraints):
        requests = sampler.requests(options.prompt, options.length, SAMPLES, wanted)
        done = []
        for sample in sampler.run(requests, options.seed):
            done.append(sample)
            bar.advance(shown)
        sides.append(sorted(done, key=lambda item: item.sample))
    plain, constrained = sides
    for item in plain:
        show.judge(sampler, item, constraints)
    table = Table(title=Text(title, style="bold"), title_justify="left", expand=True, show_lines=True)
    table.add_column("plain", ratio=1)
    table.add_column("constrained", ratio=1)
    words = [options.keyword]
    for left, right in zip(plain, constrained, strict=True):
        table.add_row(show.cell(left, words, source=False), show.cell(right, words))
    console.print(table)
