"""The folder of a run: what made it, what is in it already, and who writes there.

``run.json`` is written whole before the first sample. Each rank appends to its own ``rank-N.jsonl``; what is
on disk is all that a resumed run goes by. Every writing rank holds a lock, so that no two runs, and no process
that outlived a killed run, write to one folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock, Timeout

from decoding.crew import Counts
from mucola.errors import MucolaError
from mucola.generations import RUN_INFO, Run, Writer

COMPARED = ("config", "constraints", "prompts", "models", "steered")
"""The parts of ``run.json`` that a resumed run must agree with; a model is the same wherever its folder lies."""
LOCK_SECONDS = 15.0
"""How long a resumed run waits for the last process of a killed one to end."""


class RunFolder:
    """Where a run is written."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._held = ExitStack()

    def check(self, info: Mapping[str, Any], resume: bool = True) -> None:
        """Refuse, before anything is loaded, a folder that cannot be written or that holds another run."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".probe-{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise MucolaError(f"Cannot write to {self.path}: {error.strerror}; choose another --output.") from error
        if self._samples():
            self._compare(info)
        if not resume and self._samples():
            raise MucolaError(f"{self.path} holds a run already; choose another --output, or go on with --resume true.")

    def open(self, info: Mapping[str, Any]) -> Iterator[tuple[str, int, Counts]]:
        """Rank 0: make sure that nobody else writes here, leave ``run.json``, tell the samples that are done."""
        self._held.callback(self._lock(".rank-0.lock").release)
        for file in self.path.glob(".rank-*.lock"):
            if file.name != ".rank-0.lock":
                self._lock(file.name).release()
        for file in self.path.glob("*.jsonl"):
            Writer(file).close()  # cuts off a line that a kill left unfinished
        if self._samples():
            self._compare(info)
            for group in Run(self.path):
                for generation in group:
                    yield generation.prompt_id, generation.sample, Counts.of(generation)
        else:
            _write_whole(self.path / RUN_INFO, json.dumps(info, indent=2, ensure_ascii=False) + "\n")

    def writer(self, rank: int) -> Writer:
        """Where a rank appends its samples."""
        if rank > 0:
            self._held.callback(self._lock(f".rank-{rank}.lock").release)
        return Writer(self.path / f"rank-{rank}.jsonl")

    def close(self) -> None:
        """Let others write."""
        self._held.close()

    def _samples(self) -> bool:
        """Whether anything is written that a new run would have to fit."""
        return any(file.stat().st_size for file in self.path.glob("*.jsonl"))

    def _lock(self, name: str) -> BaseFileLock:
        lock = FileLock(self.path / name, timeout=LOCK_SECONDS)
        try:
            lock.acquire()
        except Timeout:
            raise MucolaError(
                f"Another process is writing to {self.path}; wait until it has ended, or choose another --output."
            ) from None
        return lock

    def _compare(self, info: Mapping[str, Any]) -> None:
        file = self.path / RUN_INFO
        try:
            before = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise MucolaError(
                f"{self.path} has samples, but what made them is not known: {file} cannot be read ({error}); "
                "choose another --output."
            ) from error
        parts = [part for part in COMPARED if part in info]
        found = [
            line for part in parts for line in differences(_placeless(before.get(part)), _placeless(info[part]), part)
        ]
        if found:
            shown = "; ".join(found[:5]) + (f"; and {len(found) - 5} more" if len(found) > 5 else "")
            raise MucolaError(
                f"{self.path} holds a run of another kind: {shown}. Choose another --output, or give the same options."
            )


def differences(before: Any, now: Any, name: str) -> list[str]:
    """What differs between two configs, by dotted name."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = [*before, *(key for key in now if key not in before)]
        return [line for key in keys for line in differences(before.get(key), now.get(key), f"{name}.{key}")]
    if before == now:
        return []
    return [f"{name.removeprefix('config.')} was {_short(before)}, now {_short(now)}"]


def _placeless(facts: Any) -> Any:
    """Facts about models, without the folders where they lie: their fingerprints tell."""
    if isinstance(facts, list):
        return [_placeless(item) for item in facts]
    if isinstance(facts, dict) and "fingerprint" in facts:
        return {name: value for name, value in facts.items() if name != "folder"}
    return facts


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _write_whole(path: Path, text: str) -> None:
    """So that a kill leaves either all of the file or none of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
