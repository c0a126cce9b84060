"""Generations on disk: what a decoder writes and an evaluation reads, one JSON line a sample.

A run is a folder with ``run.json`` (how the texts were made) and any number of ``*.jsonl`` files,
one for each process that wrote; reading merges them. A single JSONL file is a run too, and so is
the layout of the DExperts and RealToxicityPrompts tools, ``{"prompt": {"text": ...},
"generations": [{"text": ...}, ...]}``.

Reading streams: `Run` keeps the place of each line, not the line, so that a run of any size is
visited prompt by prompt in flat memory. A line that cannot be used is an error that names its file
and number; no line is skipped.
"""

from __future__ import annotations

import json
import os
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypedDict

from mucola.errors import MucolaError
from mucola.names import unknown

RUN_INFO = "run.json"
"""What made the texts: the resolved ``config``, ``versions``, model fingerprints (``models``), and the
constraint models that ``steered``."""


class ConstraintValue(TypedDict):
    """What a constraint said of a text: it is satisfied when ``value <= threshold``."""

    value: float
    threshold: float


@dataclass(slots=True)
class Generation:
    """One sample of one prompt. What is not known is None, never a stand-in such as 0."""

    prompt_id: str
    prompt: str
    sample: int
    text: str
    """The continuation alone, without the prompt."""
    source: str
    """Where the text came from: ``ancestral``, ``draft``, ``langevin``, ``fallback``, or the name of a baseline."""
    tokens: list[int] | None = None
    constrained: int | None = None
    """How many of the tokens were made under the constraints, if plain ones follow."""
    satisfied: bool | None = None
    """Every constraint held on the tokens."""
    verified: bool | None = None
    """Every constraint held on the text, encoded anew."""
    values: dict[str, ConstraintValue] = field(default_factory=dict)
    nll: float | None = None
    """Of the continuation given the prompt, summed over tokens, in nats."""
    steps: int | None = None
    evaluations: int | None = None
    restarts: int | None = None
    seed: int | None = None
    seconds: float | None = None
    keywords: list[str] | None = None
    terms: list[str] | None = None
    """Target terms that a translation has to use."""
    reference: str | None = None
    trace: str | None = None
    """Path of the chain's trace, relative to the file it is named in."""


_KINDS: dict[str, tuple[type, ...]] = {
    "prompt_id": (str, int),
    "prompt": (str,),
    "sample": (int,),
    "text": (str,),
    "source": (str,),
    "tokens": (list,),
    "constrained": (int,),
    "satisfied": (bool,),
    "verified": (bool,),
    "values": (dict,),
    "nll": (int, float),
    "steps": (int,),
    "evaluations": (int,),
    "restarts": (int,),
    "seed": (int,),
    "seconds": (int, float),
    "keywords": (list,),
    "terms": (list,),
    "reference": (str,),
    "trace": (str,),
}
_REQUIRED = ("prompt_id", "prompt", "sample", "text", "source")
_ELEMENTS = {"tokens": int, "keywords": str, "terms": str}
IMPORTED = "imported"
"""The source of samples from other tools, which do not tell where a text came from."""


class Writer:
    """Appends generations to a file, each as one whole line that a kill cannot tear from its newline.

    An unfinished last line that an earlier kill left behind is cut off on opening: its sample has
    to be made again, and `Run` would rightly refuse it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = self.path.open("ab+")
        self._file.truncate(_whole_lines(self._file))

    def write(self, generation: Generation) -> None:
        """Append one line; what is None is left out."""
        fields = ((name, getattr(generation, name)) for name in Generation.__dataclass_fields__)
        record = {name: value for name, value in fields if value is not None}
        self._file.write(json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write_run(folder: str | Path, generations: Iterable[Generation], info: Mapping[str, Any] | None = None) -> Path:
    """Write a whole run at once, into ``folder/generations.jsonl`` and ``folder/run.json``."""
    folder = Path(folder)
    with Writer(folder / "generations.jsonl") as writer:
        for generation in generations:
            writer.write(generation)
    (folder / RUN_INFO).write_text(json.dumps(info or {}, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return folder


class _Place(NamedTuple):
    file: int
    line: int
    offset: int


class Run:
    """The generations of a folder or a file, grouped by prompt."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.name = self.path.stem if self.path.is_file() else self.path.resolve().name
        self.files = _files(self.path)
        self.info = _info(self.path)
        self._places: dict[str, array[int]] = {}
        """File, line and offset of each line that has samples of a prompt, one after another: it is all that
        stays in memory of a line, so it is kept small."""
        self._sizes: Counter[str] = Counter()
        self.prompts: dict[str, str] = {}
        """Text of each prompt by its id, in order of appearance."""
        self._index()

    def __len__(self) -> int:
        return self._sizes.total()

    def __iter__(self) -> Iterator[list[Generation]]:
        """The samples of one prompt after another, each list ordered by sample number."""
        handles = [file.open("rb") for file in self.files]
        try:
            for prompt_id in self._places:
                group: dict[int, Generation] = {}
                for place in self._lines(prompt_id):
                    handle = handles[place.file]
                    handle.seek(place.offset)
                    for generation in _parse(handle.readline(), self.files[place.file], place.line, known_good=True):
                        if generation.prompt_id == prompt_id:
                            group[generation.sample] = generation
                yield [group[sample] for sample in sorted(group)]
        finally:
            for handle in handles:
                handle.close()

    def sizes(self) -> dict[str, int]:
        """Number of samples of each prompt."""
        return dict(self._sizes)

    def where(self, prompt_id: str, sample: int | None = None) -> str:
        """File and line of a sample, or of a prompt's first one, for messages."""
        for place in self._lines(prompt_id):
            path = self.files[place.file]
            if sample is None:
                return _where(path, place.line)
            with path.open("rb") as file:
                file.seek(place.offset)
                if any(g.sample == sample for g in _parse(file.readline(), path, place.line, known_good=True)):
                    return _where(path, place.line)
        raise KeyError((prompt_id, sample))

    def trace_path(self, generation: Generation) -> Path | None:
        """Where the trace of a sample is, if it has one."""
        folder = self.path if self.path.is_dir() else self.path.parent
        return folder / generation.trace if generation.trace else None

    def _lines(self, prompt_id: str) -> Iterator[_Place]:
        numbers = iter(self._places[prompt_id])
        return map(_Place._make, zip(numbers, numbers, numbers, strict=True))

    def _index(self) -> None:
        """Read everything once: check each line and note where each prompt's samples are."""
        seen: dict[str, set[int]] = {}
        for number, path in enumerate(self.files):
            offset = 0
            with path.open("rb") as file:
                for line, content in enumerate(file, 1):
                    place = _Place(number, line, offset)
                    offset += len(content)
                    for generation in _parse(content, path, line):
                        self._enter(generation, place, seen)
        if not seen:
            raise MucolaError(f"{self.path} holds no generations.")

    def _enter(self, generation: Generation, place: _Place, seen: dict[str, set[int]]) -> None:
        name, sample = generation.prompt_id, generation.sample
        here = _where(self.files[place.file], place.line)
        if sample in seen.setdefault(name, set()):
            first = self.where(name, sample)
            raise MucolaError(f"{here}: sample {sample} of prompt {name!r} is there already, at {first}.")
        if self.prompts.setdefault(name, generation.prompt) != generation.prompt:
            raise MucolaError(f"{here}: prompt {name!r} has another text than at {self.where(name)}.")
        seen[name].add(sample)
        self._sizes[name] += 1
        places = self._places.setdefault(name, array("q"))
        if tuple(places[-3:]) != place:  # in the grouped layout one line holds many samples
            places.extend(place)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(path.glob("*.jsonl"))
        if not found:
            raise MucolaError(f"{path} has no generations: there is no *.jsonl file in it.")
        return found
    if not path.is_file():
        raise MucolaError(f"{path} does not exist; give a run's folder or a JSONL file of generations.")
    return [path]


def _info(path: Path) -> dict[str, Any]:
    file = path / RUN_INFO
    if not path.is_dir() or not file.exists():
        return {}
    try:
        info = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise MucolaError(f"{file} is not valid JSON ({error}).") from None
    if not isinstance(info, dict):
        raise MucolaError(f"{file} should hold one JSON object.")
    return info


def _parse(content: bytes, path: Path, line: int, known_good: bool = False) -> list[Generation]:
    """The generations on one line: one in our layout, any number in the grouped one.

    ``known_good`` spares a line that was checked before the checks of its fields.
    """
    here = _where(path, line)
    if not content.strip():
        return []
    try:
        record = json.loads(content, parse_constant=_refuse)
    except ValueError as error:
        if not content.endswith(b"\n"):
            raise MucolaError(
                f"{here}: the line is cut off; resume the run that wrote it, or delete the line."
            ) from None
        raise MucolaError(f"{here}: not valid JSON ({error}).") from None
    if not isinstance(record, dict):
        raise MucolaError(f"{here}: expected a JSON object, found {type(record).__name__}.")
    if "generations" in record:
        return _grouped(record, here, line)
    if not known_good:
        _check(record, here)
    record["prompt_id"] = str(record["prompt_id"])
    return [Generation(**{name: value for name, value in record.items() if value is not None})]


def _check(record: dict[str, Any], here: str) -> None:
    for name in _REQUIRED:
        if record.get(name) is None:
            raise MucolaError(f"{here}: the field {name!r} is missing.")
    for name, value in record.items():
        if name not in _KINDS:
            raise MucolaError(f"{here}: {unknown('field', name, _KINDS)}")
        if value is not None:
            _check_field(name, value, here)


def _check_field(name: str, value: Any, here: str) -> None:
    kinds = _KINDS[name]
    right = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
    if right and name in _ELEMENTS:
        right = set(map(type, value)) <= {_ELEMENTS[name]}
    if right and name == "values":
        right = all(isinstance(entry, dict) and {"value", "threshold"} <= entry.keys() for entry in value.values())
    if not right:
        shape = {"values": "{constraint: {value, threshold}}"}.get(name, " or ".join(kind.__name__ for kind in kinds))
        raise MucolaError(f"{here}: the field {name!r} should be {shape}, not {json.dumps(value)[:60]}.")


def _grouped(record: dict[str, Any], here: str, line: int) -> list[Generation]:
    """A line of the DExperts and RealToxicityPrompts tools; the prompt's id is its line number."""
    prompt = record.get("prompt")
    text = prompt.get("text") if isinstance(prompt, dict) else prompt
    if not isinstance(text, str):
        raise MucolaError(f"{here}: the field 'prompt' should be {{\"text\": ...}}.")
    samples = record["generations"]
    if not isinstance(samples, list) or not samples:
        raise MucolaError(f"{here}: the prompt has no samples ('generations' is empty).")
    made = []
    for number, sample in enumerate(samples):
        continuation = sample.get("text") if isinstance(sample, dict) else sample
        if not isinstance(continuation, str):
            raise MucolaError(f"{here}: sample {number} has no 'text'.")
        made.append(Generation(str(line), text, number, continuation, IMPORTED))
    return made


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


def _where(path: Path, line: int) -> str:
    return f"{path}, line {line}"


def _whole_lines(file: BinaryIO) -> int:
    """Length of the file up to and including its last newline."""
    size = file.seek(0, os.SEEK_END)
    end = size
    while end > 0:
        start = max(0, end - 65536)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
