"""How many chains are computed at once: a guess from the memory there is, and half as many whenever it runs out."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch

from mucola.errors import MucolaError

if TYPE_CHECKING:
    from mucola.language_model import LanguageModel

Result = TypeVar("Result")

MOST_ON_CPU = 24
"""A core is busy with this many chains; more of them would only take memory."""
MOST = 512
TYPICAL_TOKENS = 64
FLOATS_KEPT = 40
"""What a layer keeps for the backward pass, in numbers a token and hidden unit."""
ROWS_PER_CHAIN = 4
"""Plain samples are drawn so many times as many at once: they keep nothing for a backward pass."""
SHARE = 0.5
"""Of the free memory; the rest is for constraint models and whatever else runs."""

_log = logging.getLogger(__name__)


def chains_that_fit(language_model: LanguageModel) -> int:
    """A batch size for a language model, from the memory that is free on its device now."""
    config = language_model.model.config.get_text_config()
    numbers = TYPICAL_TOKENS * config.hidden_size * config.num_hidden_layers * FLOATS_KEPT
    bytes_each = 2 * 4 * numbers  # a constraint model may keep as much again
    on_cpu = language_model.device.type == "cpu"
    fitting = int(SHARE * free_bytes(language_model.device) / bytes_each)
    return max(1, min(fitting, MOST_ON_CPU if on_cpu else MOST))


def free_bytes(device: torch.device) -> int:
    """Memory that this process may take: of its GPU, or its share of the machine's (or the container's)."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    import psutil

    free = psutil.virtual_memory().available
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
        free = min(free, int(limit) - int(used)) if limit.isdigit() else free
    except OSError:
        pass  # not in a container
    return free // int(os.environ.get("LOCAL_WORLD_SIZE", 1))


class Room:
    """How many rows may be computed at once."""

    def __init__(self, size: int) -> None:
        self.size = size

    def parts(
        self, count: int, work: Callable[[range], Result], generators: Sequence[torch.Generator] = ()
    ) -> list[Result]:
        """``work`` on rows 0 to ``count``, in parts that fit.

        When memory runs out, the room halves and the part is done again. ``generators``, one a row if
        ``work`` draws from them, are put back to where they were, so that a row's result is the same.
        """
        done: list[Result] = []
        start = 0
        while start < count:
            rows = range(start, min(start + self.size, count))
            before = [generator.get_state() for generator in generators[rows.start : rows.stop]]
            try:
                done.append(work(rows))
                start = rows.stop
                continue
            except RuntimeError as error:
                if not ran_out_of_memory(error):
                    raise
                if len(rows) == 1:
                    raise MucolaError(
                        "There is not enough memory for a single chain; use a smaller model, a shorter length "
                        "or another device."
                    ) from error
            # Only here, outside the handler, are the tensors of the failed attempt free to go.
            for generator, state in zip(generators[rows.start : rows.stop], before, strict=True):
                generator.set_state(state)
            self.size = len(rows) // 2
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            _log.warning("Out of memory with %d chains at once; going on with %d.", len(rows), self.size)
        return done


def ran_out_of_memory(error: RuntimeError) -> bool:
    """Whether an allocation failed, on a GPU or on the CPU."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
