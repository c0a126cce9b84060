"""Traces of chains: what the sampler recorded at each step, for convergence plots and the viewer."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from pathlib import Path

from mucola.errors import MucolaError
from mucola.trace import Trace


def read_trace(path: str | Path) -> Trace:
    """Read a trace, or say why it is none."""
    path = Path(path)
    if not path.is_file():
        raise MucolaError(f"The trace {path} does not exist.")
    try:
        trace = Trace.load(path)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise MucolaError(f"The trace {path} cannot be read ({error}).") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise MucolaError(f"{path} is not the trace of a chain ({error}).") from None
    if not trace.steps:
        raise MucolaError(f"The trace {path} has no steps.")
    return trace


def numbers(values: Sequence[float | None]) -> list[float]:
    """What was infinite or undefined is written as null and becomes NaN, a hole in a curve."""
    return [math.nan if value is None else value for value in values]


def average(rows: Sequence[Sequence[float]]) -> list[float]:
    """Mean over chains at each step; a chain that has stopped stays where it stopped, holes are left out.

    >>> average([[4.0, 2.0, 1.0], [2.0]])
    [3.0, 2.0, 1.5]
    """
    means = []
    for step in range(max(map(len, rows))):
        known = [value for row in rows if not math.isnan(value := row[min(step, len(row) - 1)])]
        means.append(math.fsum(known) / len(known) if known else math.nan)
    return means
