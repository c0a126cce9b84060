"""How far a run has come, over all ranks: a bar where someone is looking, a line now and then elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from decoding.crew import Counts

REFRESH = 0.5
QUIET = 30.0
"""Seconds between lines when the output is not a terminal."""


class RunProgress:
    """Shows the counts of a run until it ends; ``before`` is what an earlier part of it had done."""

    def __init__(self, total: int, before: Counts, counts: Callable[[], Counts], console: Console) -> None:
        self.total = total
        self.before = before
        self.counts = counts
        self.console = console
        self.started = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> RunProgress:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def summary(self) -> str:
        """The whole run in one line."""
        new, seconds = self.counts(), time.monotonic() - self.started
        done = self.before + new
        earlier = f", {self.before.done} of them earlier" if self.before.done else ""
        return (
            f"{done.done} of {self.total} samples{earlier}, {seconds:.0f} s, {new.done / seconds:.2f} samples/s, "
            f"{_percent(done.verified, done.done)} verified, {_percent(done.fallback, done.done)} fallback"
        )

    def _show(self) -> None:
        if not self.console.is_terminal:
            while not self._ended.wait(QUIET):
                self.console.print(f"{self.summary()}, {self._left()} left", highlight=False, soft_wrap=True)
            return
        columns = (
            TextColumn("decoding"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console, transient=True) as bar:
            task = bar.add_task("", total=self.total, completed=self.before.done, numbers="")
            while not self._ended.wait(REFRESH):
                new = self.counts()
                done = self.before + new
                rate = new.done / (time.monotonic() - self.started)
                numbers = (
                    f"{_percent(done.verified, done.done)} verified, "
                    f"{_percent(done.fallback, done.done)} fallback, {rate:.2f}/s"
                )
                bar.update(task, completed=done.done, numbers=numbers)

    def _left(self) -> str:
        new = self.counts().done
        missing = self.total - self.before.done - new
        return f"{missing * (time.monotonic() - self.started) / new:.0f} s" if new else "unknown time"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"
