"""What the benchmarks share: interleaved timing, peak memory, tables, and JSON that names the machine.

Times are of the processor (all threads of the process), which on an idle machine and one thread is the time on
the clock; the clock's time is kept beside it. Ratios are taken within a round, in which every case runs once, so
that whatever else the machine does falls on all cases alike; a ratio is the median over rounds.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

MIB = 2**20


@dataclass
class Options:
    """How a benchmark is run."""

    full: bool = False
    threads: int = 1
    repeats: int | None = None
    output: Path = Path("out/benchmarks")

    @classmethod
    def given(cls, description: str | None) -> Options:
        """Those of the command line."""
        made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        made.add_argument("--full", action="store_true", help="the real thing: more rounds, all sizes")
        made.add_argument("--threads", type=int, default=cls.threads, help="of the processor (default: 1)")
        made.add_argument("--repeats", type=int, help="rounds, instead of the benchmark's own number")
        made.add_argument("--output", type=Path, default=cls.output, help="folder of the JSON file (%(default)s)")
        return cls(**vars(made.parse_args()))

    def rounds(self, quick: int, full: int) -> int:
        """How many rounds to run."""
        return self.repeats or (full if self.full else quick)


@dataclass
class Timing:
    """What the rounds of one case took."""

    seconds: list[float] = field(default_factory=list)
    """Of the processor."""
    clock: list[float] = field(default_factory=list)
    memory: int = 0
    """The most memory in use during a round beyond what was in use before, in bytes."""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Ratio:
    """How often one case goes into another: the median over rounds, the least and the most."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}-{self.high:.2f}]"


def interleaved(cases: Mapping[str, Callable[[], object]], rounds: int, warm_up: bool = True) -> dict[str, Timing]:
    """Run all cases once to warm up, then ``rounds`` times each, in turns."""
    found = {name: Timing() for name in cases}
    for work in cases.values() if warm_up else ():
        work()
    for _ in range(rounds):
        for name, work in cases.items():
            with peak_memory() as peak:
                clock, seconds = time.perf_counter(), time.process_time()
                work()
                found[name].seconds.append(time.process_time() - seconds)
                found[name].clock.append(time.perf_counter() - clock)
            found[name].memory = max(found[name].memory, peak[0])
    return found


def ratio(top: Timing, bottom: Timing, scale: float = 1.0) -> Ratio:
    """``top`` / ``bottom``, round by round, times ``scale``."""
    each = [scale * a / b for a, b in zip(top.seconds, bottom.seconds, strict=True)]
    return Ratio(statistics.median(each), min(each), max(each))


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """The most memory that the block had in use beyond what was in use before it; bytes, in a list of one.

    Linux alone can be asked to forget an earlier peak; elsewhere the answer is 0.
    """
    answer = [0]
    forget = Path("/proc/self/clear_refs")
    if not forget.exists():
        yield answer
        return
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what is free but still held would hide what is taken next
    forget.write_text("5")
    before = _status("VmRSS")
    yield answer
    answer[0] = max(0, _status("VmHWM") - before)


def resident() -> int:
    """Memory in use now, in bytes; 0 where it cannot be told."""
    return _status("VmRSS") if Path("/proc/self/status").exists() else 0


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


class Report:
    """Tables of one benchmark, printed as they come and written to ``NAME.json`` in the end."""

    def __init__(self, name: str, options: Options) -> None:
        torch.set_num_threads(options.threads)
        self.name, self.options = name, options
        self.facts: dict[str, Any] = {"benchmark": name, "full": options.full, "machine": machine()}
        self.facts["tables"] = {}

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], note: str = "") -> None:
        """Print a table and keep it."""
        shown = Table(title=title, title_justify="left", caption=note or None, caption_justify="left")
        for index, column in enumerate(columns):
            shown.add_column(column, justify="left" if index == 0 else "right")
        for row in rows:
            shown.add_row(*map(_text, row))
        Console(width=None if os.isatty(1) else 160).print(shown)
        kept = [dict(zip(columns, map(_plain, row), strict=True)) for row in rows]
        self.facts["tables"][title] = {"rows": kept, "note": note} if note else {"rows": kept}

    def keep(self, name: str, timings: Mapping[str, Timing]) -> None:
        """All rounds, for whoever wants to look closer."""
        rounds = {case: {"seconds": t.seconds, "clock": t.clock, "memory": t.memory} for case, t in timings.items()}
        self.facts.setdefault("rounds", {})[name] = rounds

    def write(self) -> Path:
        """Write the JSON file."""
        path = self.options.output / f"{self.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.facts, indent=1) + "\n", encoding="utf-8")
        print(path)
        return path


def machine() -> dict[str, object]:
    """What the numbers depend on beside the code."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(_memory() / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "load": [round(value, 1) for value in os.getloadavg()],
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "transformers", "mucola")},
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _text(cell: object) -> str:
    if isinstance(cell, float):
        return f"{cell:.3g}" if abs(cell) < 100 else f"{cell:,.0f}"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def _plain(cell: object) -> object:
    return {"median": cell.median, "low": cell.low, "high": cell.high} if isinstance(cell, Ratio) else cell
