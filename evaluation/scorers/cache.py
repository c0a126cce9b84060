"""Scores kept on disk by text and revision: a killed evaluation goes on, nothing is scored twice."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from mucola import packages
from mucola.errors import MucolaError

Item = TypeVar("Item", bound=Hashable, contravariant=True)


class Source(Protocol[Item]):
    """What the cache can stand in front of: scorers of texts, and judges of (prompt, continuation)."""

    @property
    def revision(self) -> str: ...

    @property
    def batch_size(self) -> int: ...

    def score(self, items: Sequence[Item]) -> list[Any]: ...


class ScoreCache:
    """One SQLite file; each batch is committed as soon as it is scored."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or packages.home() / "scores.sqlite"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(self.path, timeout=60)
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS scores"
                " (revision TEXT, item BLOB, score TEXT, PRIMARY KEY (revision, item)) WITHOUT ROWID"
            )
        except (OSError, sqlite3.Error) as error:
            raise MucolaError(f"The score cache {self.path} cannot be used ({error}); set MUCOLA_HOME.") from error

    def scores(
        self, source: Source[Item], items: Sequence[Item], advance: Callable[[int], object] = lambda count: None
    ) -> list[Any]:
        """The score of each item, from disk where it is known; ``advance`` hears of each finished batch."""
        known: dict[Item, Any] = {}
        missing: list[Item] = []
        for item in dict.fromkeys(items):
            row = self._database.execute(
                "SELECT score FROM scores WHERE revision = ? AND item = ?", (source.revision, _key(item))
            ).fetchone()
            if row is None:
                missing.append(item)
            else:
                known[item] = json.loads(row[0])
        advance(len(items) - len(missing))
        missing.sort(key=lambda item: len(str(item)))  # batches of like lengths waste little padding
        for start in range(0, len(missing), source.batch_size):
            batch = missing[start : start + source.batch_size]
            fresh = source.score(batch)
            if len(fresh) != len(batch):
                raise RuntimeError(f"{source.revision} gave {len(fresh)} scores for {len(batch)} texts.")
            self._keep(source.revision, batch, fresh)
            known.update(zip(batch, fresh, strict=True))
            advance(len(batch))
        return [known[item] for item in items]

    def _keep(self, revision: str, items: Sequence[Hashable], scores: Sequence[Any]) -> None:
        """Gaps are not kept: the next evaluation asks again."""
        rows = [
            (revision, _key(item), json.dumps(score, allow_nan=False))
            for item, score in zip(items, scores, strict=True)
            if score is not None
        ]
        with self._database:
            self._database.executemany("INSERT OR REPLACE INTO scores VALUES (?, ?, ?)", rows)

    def close(self) -> None:
        self._database.close()


def _key(item: Hashable) -> bytes:
    return hashlib.sha256(json.dumps(item).encode()).digest()
