"""``mucola sample PROMPT``: continuations of a prompt under constraints."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mucola.cli import parser
from mucola.errors import MucolaError

if TYPE_CHECKING:
    from mucola.sampler import Sample


def command(arguments: Sequence[str]) -> None:
    """Entry point of ``mucola sample``."""
    made = arguments_parser()
    options = made.instantiate_classes(made.parse_args(list(arguments)))
    samples = draw(options, written_constraints(options))
    if options.output:
        _write(samples, Path(options.output))
    if options.trace:
        _save_traces(samples, Path(options.trace))
    _show(samples, _flat(options.keyword))


def arguments_parser() -> Any:
    """The options of the command."""
    from mucola.settings import Settings

    made = parser("sample", "Continue a prompt with text that satisfies constraints.")
    made.add_argument("prompt", type=str, help="the text to continue; may be empty")
    made.add_argument("--model", type=str, default="smollm2-135m", help="built-in name, folder or Hugging Face id")
    made.add_argument("--length", type=int, default=20, help="tokens in each continuation")
    made.add_argument("-n", "--num_samples", type=int, default=4, help="how many continuations")
    made.add_argument("--seed", type=int, default=0)
    add_constraints(made)
    made.add_argument("--output", type=str | None, help="write the samples to this JSONL file, too")
    made.add_argument("--trace", type=str | None, help="write every step of the chains, and plots, to this folder")
    made.add_class_arguments(Settings, "sampling")
    return made


def add_constraints(made: Any) -> None:
    """The options that write constraints: shorthands, and the notation itself."""
    made.add_argument("--keyword", type=_words, default=[], action="append", help="a word that must appear; repeat")
    made.add_argument("--exclude", type=_words, default=[], action="append", help="a word that must not; repeat")
    for label, sign in (("positive", ">"), ("negative", ">"), ("toxic", "<")):
        made.add_argument(f"--{label}", type=float | None, metavar="P", help=f"p({label}) {sign} P")
    made.add_argument(
        "--constraint",
        type=_words,
        default=[],
        action="append",
        help="any constraint, as written in Python; repeat",
    )


def written_constraints(options: Any) -> list[str]:
    """All constraints of the command line in one notation."""
    found = _flat(options.constraint)
    for label, sign in (("positive", ">"), ("negative", ">"), ("toxic", "<")):
        threshold = getattr(options, label)
        if threshold is not None:
            found.append(f"classifier({json.dumps(label)}) {sign} {threshold}")
    found += [f"keyword({json.dumps(word, ensure_ascii=False)})" for word in _flat(options.keyword)]
    found += [f"exclude({json.dumps(word, ensure_ascii=False)})" for word in _flat(options.exclude)]
    return found


def _words(given: str | list[str]) -> list[str]:
    """One word from the command line, or a list of them from YAML."""
    return [given] if isinstance(given, str) else given


def _flat(values: Sequence[list[str]]) -> list[str]:
    return [word for value in values for word in _words(value)]


def draw(options: Any, constraints: Sequence[str]) -> list[Sample]:
    """Load the model and sample, with a progress bar where someone is looking."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from mucola.constraints import parse_all
    from mucola.sampler import load

    made = parse_all(constraints)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"))
    with Progress(*columns, TimeElapsedColumn(), transient=True, disable=not sys.stderr.isatty()) as bar:
        loading = bar.add_task(f"loading {options.model}", total=None)
        sampler = load(options.model, options.sampling)
        bar.remove_task(loading)
        shown = bar.add_task("sampling", total=options.num_samples)
        requests = sampler.requests(options.prompt, options.length, options.num_samples, made)
        done = []
        for sample in sampler.run(requests, options.seed, trace=bool(options.trace)):
            done.append(sample)
            bar.advance(shown)
    return sorted(done, key=lambda sample: sample.sample)


def _show(samples: Sequence[Sample], keywords: Sequence[str]) -> None:
    from rich.console import Console

    from mucola.commands import show

    console = Console(soft_wrap=not sys.stdout.isatty())
    for sample in samples:
        console.print(show.sample(sample, keywords))
    console.print(show.legend(samples), end="")


def _write(samples: Sequence[Sample], path: Path) -> None:
    """Write beside the file and rename: whatever goes wrong, what was there before stays whole."""
    from tempfile import TemporaryDirectory

    from mucola.generations import Writer

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as folder:
            with Writer(Path(folder) / path.name) as writer:
                for sample in samples:
                    writer.write(sample)
            writer.path.replace(path)
    except OSError as error:
        raise MucolaError(f"Cannot write {path}: {error.strerror}.") from error


def _save_traces(samples: Sequence[Sample], folder: Path) -> None:
    try:
        for sample in samples:
            for trace in sample.traces:
                stem = f"trace-{sample.sample}-{trace.restart}"
                trace.save(folder / f"{stem}.json.gz")
                trace.plot(folder / f"{stem}.png")
    except OSError as error:
        raise MucolaError(f"Cannot write the traces to {folder}: {error.strerror}.") from error
