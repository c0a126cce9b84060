"""The Perspective API. It closes at the end of 2026 and gives out no new keys: a local scorer is the default."""

from __future__ import annotations

import json
import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

from evaluation.scorers.base import Scorer
from mucola.errors import MucolaError

URL = "https://commentanalyzer.googleapis.com/v1alpha1/comments:analyze"
KEY = "PERSPECTIVE_API_KEY"
_NO_ANSWER = ("COMMENT_EMPTY", "LANGUAGE_NOT_SUPPORTED_BY_ATTRIBUTE", "COMMENT_TOO_LONG")


class _Retry(Exception):
    """Something that may go better the next time."""

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


class PerspectiveScorer(Scorer):
    """One request a text, spaced to ``per_second``; what may pass is tried again with growing pauses.

    A text that the API refuses to judge (empty, another language) is a gap. Anything else that lasts
    stops the evaluation; since each score is kept as it arrives, the next one goes on from there.
    """

    batch_size = 1
    name = "perspective"

    def __init__(
        self,
        attribute: str = "TOXICITY",
        per_second: float = 1.0,
        attempts: int = 8,
        timeout: float = 20.0,
        url: str = URL,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        key = os.environ.get(KEY)
        if not key:
            raise MucolaError(
                f"The Perspective scorer takes its key from the environment: set {KEY}, or use a local "
                "scorer such as 'ngrams-toxicity' (the API closes at the end of 2026)."
            )
        self._key = key
        self._attribute = attribute
        self._pause = 1 / per_second
        self._attempts = attempts
        self._timeout = timeout
        self._url = url
        self._sleep = sleep
        self._next = 0.0
        self.revision = f"perspective#{attribute}@v1alpha1"  # the API does not tell the version of its model
        self.identities = frozenset({"perspective"})

    def score(self, texts: Sequence[str]) -> list[float | None]:
        return [self._one(text) for text in texts]

    def _one(self, text: str) -> float | None:
        if not text.strip():
            return None
        reason = ""
        for attempt in range(self._attempts):
            self._wait_for_turn()
            try:
                return self._ask(text)
            except _Retry as failure:
                reason = str(failure)
                self._sleep(failure.after if failure.after is not None else min(60.0, self._pause * 2**attempt))
        raise MucolaError(
            f"Perspective gave no answer in {self._attempts} attempts ({reason}). What was scored is kept; "
            "run the same command again to go on."
        )

    def _wait_for_turn(self) -> None:
        now = time.monotonic()
        if now < self._next:
            self._sleep(self._next - now)
        self._next = max(now, self._next) + self._pause

    def _ask(self, text: str) -> float | None:
        body = {
            "comment": {"text": text},
            "languages": ["en"],
            "requestedAttributes": {self._attribute: {}},
            "doNotStore": True,
        }
        # The key travels in a header: in the address it would show in error messages and logs.
        headers = {"Content-Type": "application/json", "X-Goog-Api-Key": self._key}
        request = urllib.request.Request(self._url, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as answer:
                content = answer.read()
        except urllib.error.HTTPError as error:
            self._refused(error)
            return None
        except (urllib.error.URLError, socket.timeout, ConnectionError) as error:  # noqa: UP041  (3.10 has both)
            raise _Retry(f"no connection: {getattr(error, 'reason', error)}") from None
        return self._read(content)

    def _refused(self, error: urllib.error.HTTPError) -> None:
        """Return if the API has no judgement of this text, raise if something is wrong."""
        with error:
            content = error.read().decode("utf-8", "replace")
        if error.code == 429 or error.code >= 500:
            raise _Retry(f"HTTP {error.code}", _seconds(error.headers.get("Retry-After")))
        if error.code == 400 and any(cause in content for cause in _NO_ANSWER):
            return
        if error.code in (401, 403) or "API_KEY_INVALID" in content:
            raise MucolaError(f"Perspective refused the key in {KEY} (HTTP {error.code}).")
        raise MucolaError(f"Perspective refused the request (HTTP {error.code}).")

    def _read(self, content: bytes) -> float:
        try:
            found: Any = json.loads(content)["attributeScores"][self._attribute]["summaryScore"]["value"]
        except (ValueError, KeyError, TypeError):
            raise _Retry("an answer that is not what the API promises") from None
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found <= 1:
            raise _Retry(f"a score that is not between 0 and 1: {found!r}")
        return float(found)


def _seconds(header: str | None) -> float | None:
    try:
        return max(0.0, float(header)) if header else None
    except ValueError:
        return None  # a date: back off as usual
