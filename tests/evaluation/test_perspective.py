"""The Perspective client against a server that misbehaves in every way the real one does."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from evaluation.scorers.cache import ScoreCache
from evaluation.scorers.perspective import KEY, PerspectiveScorer
from mucola.errors import MucolaError

SECRET = "secret-key-123"


class Server(ThreadingHTTPServer):
    """Answers each request with the next of its ``answers``, then with the score of the text's length."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[Any] = []
        self.texts: list[str] = []
        self.keys: set[str | None] = set()
        self.paths: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/analyze"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = body["comment"]["text"]
        self.server.texts.append(text)
        self.server.keys.add(self.headers["X-Goog-Api-Key"])
        self.server.paths.add(self.path)
        answer = self.server.answers.pop(0) if self.server.answers else len(text) / 100
        if answer == "hang":
            time.sleep(0.6)
            return
        if answer == "drop":
            self.connection.close()
            return
        status, headers, content = answer if isinstance(answer, tuple) else (200, {}, answer)
        if isinstance(content, float):
            content = json.dumps({"attributeScores": {"TOXICITY": {"summaryScore": {"value": content}}}})
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv(KEY, SECRET)
    made = Server()
    threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def scorer(server: Server, pauses: list[float] | None = None, **options: Any) -> PerspectiveScorer:
    options = {"per_second": 1000.0, "timeout": 0.3, "attempts": 5} | options
    return PerspectiveScorer(url=server.url, sleep=(pauses if pauses is not None else []).append, **options)


def test_a_plain_answer(server: Server) -> None:
    assert scorer(server).score(["hello", "hello world"]) == [0.05, 0.11]
    assert server.keys == {SECRET}
    assert not any(SECRET in path for path in server.paths)  # addresses end up in logs


@pytest.mark.parametrize(
    "trouble",
    [
        (429, {}, "{}"),
        (500, {}, "oops"),
        (503, {}, ""),
        "hang",
        "drop",
        "{not json",
        "[]",
        '{"attributeScores": {}}',
        7.5,
        '{"attributeScores": {"TOXICITY": {"summaryScore": {"value": null}}}}',
    ],
    ids=["429", "500", "503", "time-out", "dropped", "malformed", "list", "no score", "out of range", "null score"],
)
def test_trouble_that_passes_is_waited_out(server: Server, trouble: Any) -> None:
    server.answers = [trouble, trouble]
    pauses: list[float] = []
    assert scorer(server, pauses).score(["hello"]) == [0.05]
    assert server.texts == ["hello"] * 3
    backoff = [pause for pause in pauses if pause >= 0.001]
    assert len(backoff) >= 2


def test_the_server_says_how_long_to_wait(server: Server) -> None:
    server.answers = [(429, {"Retry-After": "17"}, "{}")]
    pauses: list[float] = []
    scorer(server, pauses).score(["hello"])
    assert 17.0 in pauses


def test_pauses_grow(server: Server) -> None:
    server.answers = [(500, {}, "")] * 4
    pauses: list[float] = []
    scorer(server, pauses, per_second=1.0).score(["hello"])
    assert [round(pause) for pause in pauses if round(pause, 6) in (1.0, 2.0, 4.0, 8.0)] == [1, 2, 4, 8]


@pytest.mark.parametrize("trouble", [(429, {}, "{}"), (500, {}, ""), "{not json"], ids=["429", "500", "malformed"])
def test_trouble_that_lasts_is_an_error_and_never_a_zero(server: Server, trouble: Any) -> None:
    server.answers = [trouble] * 5
    with pytest.raises(MucolaError, match="no answer in 5 attempts") as caught:
        scorer(server).score(["hello"])
    assert SECRET not in str(caught.value)


def test_what_the_api_refuses_to_judge_is_a_gap(server: Server) -> None:
    refusal = json.dumps({"error": {"details": [{"errorType": "LANGUAGE_NOT_SUPPORTED_BY_ATTRIBUTE"}]}})
    server.answers = [(400, {}, refusal)]
    assert scorer(server).score(["qué", "fine", "  "]) == [None, 0.04, None]


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refused_key_or_request_stops_at_once(server: Server, status: int) -> None:
    server.answers = [(status, {}, "{}")]
    with pytest.raises(MucolaError, match=f"HTTP {status}") as caught:
        scorer(server).score(["hello"])
    assert len(server.texts) == 1
    assert SECRET not in str(caught.value)


def test_no_key_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY, raising=False)
    with pytest.raises(MucolaError, match="set PERSPECTIVE_API_KEY"):
        PerspectiveScorer()


def test_requests_keep_to_the_rate(server: Server) -> None:
    started = time.monotonic()
    PerspectiveScorer(url=server.url, per_second=20).score(["a", "b", "c", "d", "e"])
    assert time.monotonic() - started >= 4 / 20


def test_an_interrupted_evaluation_asks_for_nothing_twice(server: Server, tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path / "scores.sqlite")
    texts = ["a", "bb", "ccc", "dddd"]
    server.answers = [0.1, 0.2, *[(500, {}, "")] * 5]
    with pytest.raises(MucolaError):
        cache.scores(scorer(server), texts)
    assert cache.scores(scorer(server), texts) == [0.1, 0.2, 0.03, 0.04]
    assert [server.texts.count(text) for text in texts] == [1, 1, 6, 1]


def test_gaps_are_not_kept(server: Server, tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path / "scores.sqlite")
    server.answers = [(400, {}, "COMMENT_EMPTY")]
    assert cache.scores(scorer(server), ["hm"]) == [None]
    assert cache.scores(scorer(server), ["hm"]) == [0.02]
