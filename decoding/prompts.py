"""Prompts from files and from the hub, with the words that each one asks for.

One prompt a line: plain text, comma-separated storylines (ROC), or JSON, where any of these is understood:

    {"prompt": {"text": "...", "toxicity": 0.1}}            RealToxicityPrompts, PPLM
    {"prompt": "...", "id": "...", "keywords": [...], "terms": [...], "reference": "..."}
    {"concept_set": "dog#frisbee#catch"}                     CommonGen
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from mucola.constraints import Constraint, keyword
from mucola.errors import MucolaError

Format = Literal["auto", "lines", "json", "storylines"]


@dataclass(frozen=True)
class Entry:
    """A prompt, and what its continuations are wanted to contain."""

    id: str
    """Seeds the chains, so it depends on the entry's content, not on its place in the file."""
    text: str
    keywords: tuple[str, ...] = ()
    terms: tuple[str, ...] = ()
    reference: str | None = None

    def constraints(self) -> list[Constraint]:
        """Each word must appear."""
        return [keyword(word) for word in dict.fromkeys((*self.keywords, *self.terms))]


class Entries(NamedTuple):
    """What a file holds, and what was wrong with the lines that were left out."""

    entries: list[Entry]
    skipped: list[str]

    @property
    def fingerprint(self) -> str:
        """Changes when any prompt does."""
        return hashlib.sha256(repr(self.entries).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class PromptFile:
    """Where prompts come from, and which of them are used."""

    file: str
    """A file (.txt, .jsonl, either also .gz), or a dataset by hub id, such as allenai/real-toxicity-prompts."""
    format: Format = "auto"
    """Storylines are lines of keywords with commas between them; the others are told by the file's name."""
    prefix: str = ""
    """What keyword sets continue, since they have no text of their own."""
    min_toxicity: float | None = None
    """RealToxicityPrompts: leave out prompts that are less toxic; those without a score, too."""
    max_toxicity: float | None = None
    """RealToxicityPrompts: leave out prompts that are this toxic or more; 0.5 keeps the non-toxic ones."""
    subset: int | None = None
    """Use so many of the prompts, picked at random, always the same."""
    first: int | None = None
    """Use the first so many prompts."""
    skip_bad: bool = False
    """Count and report lines that cannot be used, instead of stopping at the first one."""

    def __post_init__(self) -> None:
        for name in ("subset", "first"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise MucolaError(f"prompts.{name} must be at least 1, not {value}.")

    def read(self) -> Entries:
        """All prompts that are to be used, in the order of the file."""
        found: list[Entry] = []
        skipped: list[str] = []
        ids: Counter[str] = Counter()
        for where, parse in self._rows():
            try:
                record = parse()
                if self._filtered(record):
                    continue
                entry = _entry(record, self.prefix, ids)
            except (ValueError, KeyError, TypeError) as error:
                message = f"{where}: {error}"
                if not self.skip_bad:
                    raise MucolaError(
                        f"{message}. Correct the line, or leave such lines out with prompts.skip_bad."
                    ) from None
                skipped.append(message)
            else:
                found.append(entry)
        if self.subset is not None:
            picked = {entry.id for entry in sorted(found, key=lambda entry: _digest(entry.id))[: self.subset]}
            found = [entry for entry in found if entry.id in picked]
        found = found[: self.first]
        if not found:
            raise MucolaError(f"There are no prompts in {self.file}" + (" that are to be used." if ids else "."))
        return Entries(found, skipped)

    def _rows(self) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
        """Where each record stands, and how to read it."""
        path = Path(os.path.expandvars(self.file)).expanduser()
        if path.is_dir() or (not path.exists() and self.file.count("/") == 1 and not path.suffix):
            yield from _dataset_rows(self.file)
            return
        kind = self.format if self.format != "auto" else _format(path)
        readers = {"lines": _plain, "json": _json, "storylines": _storyline}
        for number, line in enumerate(_lines(path), 1):
            if line.strip():
                yield f"{self.file}, line {number}", lambda line=line: readers[kind](line)  # type: ignore[misc]

    def _filtered(self, record: dict[str, Any]) -> bool:
        if self.min_toxicity is None and self.max_toxicity is None:
            return False
        prompt = record.get("prompt")
        if not isinstance(prompt, dict) or "toxicity" not in prompt:
            raise ValueError("the prompt has no toxicity to select by")
        toxicity = prompt["toxicity"]
        return (
            toxicity is None
            or (self.min_toxicity is not None and toxicity < self.min_toxicity)
            or (self.max_toxicity is not None and toxicity >= self.max_toxicity)
        )


def _format(path: Path) -> str:
    name = path.name.removesuffix(".gz")
    return "json" if name.endswith((".jsonl", ".json")) else "lines"


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield from file
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise MucolaError(f"The prompts in {path} cannot be read: {reason}.") from error


def _dataset_rows(name: str) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    from datasets import load_dataset

    try:
        rows: Iterable[Any] = load_dataset(name, split="train")
    except Exception as error:  # the hub's errors have no common class
        reason = str(error).strip().splitlines()[0]
        raise MucolaError(f"There is no file {name}, and it cannot be fetched from the hub: {reason}") from error
    for number, row in enumerate(rows, 1):
        yield f"{name}, row {number}", lambda row=row: row  # type: ignore[misc]


def _plain(line: bytes) -> dict[str, Any]:
    return {"prompt": line.decode().rstrip("\r\n")}


def _json(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ValueError(f"not valid JSON ({error})") from None
    if not isinstance(record, dict):
        raise ValueError("expected a JSON object")
    return record


def _storyline(line: bytes) -> dict[str, Any]:
    return {"keywords": [word.strip() for word in line.decode().split(",")]}


def _entry(record: dict[str, Any], prefix: str, ids: Counter[str]) -> Entry:
    """One entry, of whichever shape; a repeated one gets a number behind its id."""
    keywords = _words(record, "keywords")
    if "concept_set" in record:
        keywords = tuple(str(record["concept_set"]).split("#"))
    terms = _words(record, "terms")
    text = record.get("prompt", prefix if keywords or terms else None)
    if isinstance(text, dict):
        text = text.get("text")
    if not isinstance(text, str):
        raise ValueError('there is no "prompt" with a text')
    reference = record.get("reference")
    if not isinstance(reference, str | None):
        raise ValueError('"reference" should be a text')
    if not all(word.strip() for word in (*keywords, *terms)):
        raise ValueError("one of the words is empty")
    name = str(record["id"]) if record.get("id") is not None else _digest(repr((text, keywords, terms)))
    ids[name] += 1
    if ids[name] > 1:
        if record.get("id") is not None:
            raise ValueError(f"the id {name!r} was used before")
        name = f"{name}-{ids[name]}"
    return Entry(name, text, tuple(dict.fromkeys(keywords)), tuple(dict.fromkeys(terms)), reference)


def _words(record: dict[str, Any], name: str) -> tuple[str, ...]:
    words = record.get(name) or []
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError(f'"{name}" should be a list of words')
    return tuple(words)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
