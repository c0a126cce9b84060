"""The ranks of a run: one counter that hands out work, what was done so far, and whether everyone is alive.

All of it is a few numbers in a torch.distributed store that rank 0 hosts. Nothing here waits for ever:
a rank whose store is gone (rank 0 has ended) ends within seconds, and rank 0 gives up on a rank that has
not been heard of for ``SILENCE`` seconds.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from torch.distributed import HashStore, Store, TCPStore

from mucola.errors import MucolaError

if TYPE_CHECKING:
    from lightning.fabric import Fabric

    from mucola.generations import Generation

START = timedelta(minutes=5)
"""How long ranks wait for one another at the beginning."""
SILENCE = 60.0
"""Seconds without a sign of life after which a rank counts as lost."""
BEAT = 1.0

COUNTS = ("done", "verified", "fallback")


class Counts(NamedTuple):
    """What all ranks together have done."""

    done: int = 0
    verified: int = 0
    fallback: int = 0

    @classmethod
    def of(cls, generation: Generation) -> Counts:
        """What one generation adds."""
        return cls(1, int(bool(generation.verified)), int(generation.source == "fallback"))

    def __add__(self, other: Counts) -> Counts:  # type: ignore[override]
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))


class Crew:
    """One rank's view of all of them."""

    def __init__(self, fabric: Fabric) -> None:
        self.rank, self.size = fabric.global_rank, fabric.world_size
        self._store: Store = HashStore()
        self._line: Store = self._store
        if self.size > 1:
            self._connect(fabric)
        self._heard = {rank: (0, time.monotonic()) for rank in range(1, self.size)}
        self._ended = threading.Event()
        if self.rank > 0:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 answers Ctrl-C; without it the others end
        if self.size > 1:
            threading.Thread(target=self._watch, daemon=True).start()

    def _connect(self, fabric: Fabric) -> None:
        """Find the store of rank 0; the watching thread has a connection of its own."""
        host = os.environ["MASTER_ADDR"]
        served = TCPStore(host, 0, is_master=True, wait_for_workers=False) if self.rank == 0 else None
        port = fabric.broadcast(served.port if served else 0)
        self._store = served or TCPStore(host, port, is_master=False, timeout=START)
        self._line = TCPStore(host, port, is_master=False, timeout=START)

    def share(self, name: str, value: str | None = None) -> str:
        """What rank 0 knows; the others wait for it."""
        if value is not None:
            self._store.set(name, value)
            return value
        return self._store.get(name).decode()

    def take(self, total: int) -> Iterator[int]:
        """The next pieces of work of ``total`` that no rank has taken, until none is left."""
        while not self._failure() and (mine := self._store.add("next", 1) - 1) < total:
            yield mine

    def count(self, counts: Counts) -> None:
        """Tell the others."""
        for name, number in zip(COUNTS, counts, strict=True):
            if number:
                self._store.add(name, number)

    def counts(self) -> Counts:
        """What all ranks have done; safe to call from another thread."""
        return Counts(*(self._line.add(name, 0) for name in COUNTS))

    def fail(self, message: str) -> None:
        """Let rank 0 say what went wrong here, and wait for it to end."""
        self._store.set("failure", message)
        self._store.add("failed", 1)
        time.sleep(START.total_seconds())

    def leave(self) -> None:
        """Rank 0 is the last to go: it waits for the others, and raises what went wrong on any of them."""
        self._store.add(f"left/{self.rank}", 1)
        while self.rank == 0 and not self._failure() and any(self._store.add(f"left/{r}", 0) == 0 for r in self._heard):
            time.sleep(0.05)
        if self.rank == 0 and self._failure():
            raise MucolaError(self._store.get("failure").decode())
        self._ended.set()

    def _failure(self) -> bool:
        return self._store.add("failed", 0) > 0

    def _watch(self) -> None:
        while not self._ended.wait(BEAT):
            try:
                self._line.add(f"alive/{self.rank}", 1)
                for rank in self._heard if self.rank == 0 else ():
                    self._listen(rank)
            except RuntimeError:  # rank 0 is gone, and with it the run
                if not self._ended.is_set():
                    os._exit(1)

    def _listen(self, rank: int) -> None:
        beats, since = self._heard[rank]
        now = self._line.add(f"alive/{rank}", 0)
        if now != beats or self._line.add(f"left/{rank}", 0):
            self._heard[rank] = (now, time.monotonic())
        elif time.monotonic() - since > SILENCE:
            self._line.set(
                "failure",
                f"Rank {rank} has not answered for {SILENCE:.0f} seconds; the other ranks' samples are kept, "
                "run the same command again for the rest.",
            )
            self._line.add("failed", 1)
