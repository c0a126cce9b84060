"""What all metrics share: totals per prompt, a value from their sum, an interval, a signature.

A metric is two pure functions. ``totals`` turns the samples of one prompt into a row of numbers;
``value`` turns the sum of such rows into the result (a mean is a sum and a count, BLEU is its n-gram
counts, a corpus perplexity is nats and tokens). Everything else follows: the state is one row a
prompt, so processes only have to put their rows together, and the bootstrap over prompts draws
rows, so it never reads a text twice.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric

RESAMPLES = 1000
LEVEL = 0.95
BLOCK = 1 << 18
"""Numbers that are drawn at once."""


@dataclass(frozen=True)
class Estimate:
    """A metric's value with its bootstrap interval over prompts, and what exactly was measured."""

    value: float
    low: float
    high: float
    prompts: int
    samples: int
    signature: str

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


def ratio(rows: Iterable[Sequence[float]]) -> float:
    """Sum of the first column over the sum of the second.

    >>> ratio([(1.0, 2.0), (2.0, 2.0)])
    0.75
    """
    top = bottom = 0.0
    for row in rows:
        top += row[0]
        bottom += row[1]
    if not bottom:
        raise ValueError("There is nothing to average: no prompt had a sample.")
    return top / bottom


class PromptMetric(Metric):
    """A metric over prompts with several samples each; subclasses write `totals` and, unless it is a mean, `value`."""

    name: str
    width: ClassVar[int] = 2
    higher_is_better: bool | None = None
    is_differentiable = False
    full_state_update = False
    rows: list[Tensor]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.set_dtype(torch.float64)  # a process without a prompt contributes an empty tensor of this type
        self.add_state("rows", default=[], dist_reduce_fx="cat")

    @abstractmethod
    def totals(self, *samples: Any) -> Sequence[float]:
        """The row of one prompt, ``width`` numbers long."""

    def value(self, totals: Tensor) -> Tensor:
        """The result from summed rows, ``(..., width)`` to ``(...)``; a mean unless a subclass says otherwise."""
        return totals[..., 0] / totals[..., 1]

    def facts(self) -> dict[str, object]:
        """Settings that change the number, for the signature."""
        return {}

    def update(self, *samples: Sequence[Any]) -> None:
        """Add one prompt, as one or more equally long lists with an entry per sample."""
        lengths = {len(column) for column in samples}
        if len(lengths) != 1:
            raise ValueError(f"The columns of a prompt differ in length: {sorted(lengths)}.")
        (count,) = lengths
        if not count:
            raise ValueError("A prompt without samples cannot be measured.")
        if any(entry is None or entry != entry for column in samples for entry in column):  # NaN differs from itself
            raise ValueError(f"{self.name}: a score is missing; drop and count gaps before measuring.")
        row = torch.tensor([count, *self.totals(*samples)], dtype=torch.float64, device=self.device)
        self.rows.append(row)
        if len(self.rows) == 1024:  # few large tensors instead of many small ones
            self.rows = [torch.cat(self.rows)]

    def compute(self) -> Tensor:
        return self.value(self._table()[:, 1:].sum(0))

    def estimate(self, context: Mapping[str, object] | None = None, seed: int = 0) -> Estimate:
        """Value, bootstrap interval and signature; ``context`` is what the caller knows (scorer, text, ...)."""
        with self.sync_context(should_sync=self._to_sync, should_unsync=True):
            table = self._table()
        counts, totals = table[:, 0], table[:, 1:]
        low, high = self._interval(totals, seed)
        few, many = int(counts.min()), int(counts.max())
        facts = {
            "k": few if few == many else f"{few}-{many}",
            "prompts": len(table),
            **self.facts(),
            **(context or {}),
            "ci": f"bootstrap{RESAMPLES}-seed{seed}",
            "version": version("mucola"),
        }
        signature = "|".join([self.name, *(f"{key}:{value}" for key, value in facts.items())])
        return Estimate(float(self.value(totals.sum(0))), low, high, len(table), int(counts.sum()), signature)

    def _table(self) -> Tensor:
        """All rows ``(prompts, 1 + width)`` in an order that does not depend on who added them."""
        rows = self.rows if isinstance(self.rows, Tensor) else torch.cat([*self.rows, torch.zeros(0)])
        if not rows.numel():
            raise ValueError(f"{self.name}: no prompt was added.")
        table = rows.view(-1, 1 + self.width)
        for column in range(table.shape[1] - 1, -1, -1):
            table = table[table[:, column].argsort(stable=True)]
        return table

    def _interval(self, totals: Tensor, seed: int) -> tuple[float, float]:
        totals = totals.cpu()
        spread = self.value(torch.cat([weights @ totals for weights in _draws(len(totals), seed)]))
        spread = spread[spread.isfinite()]  # a draw of prompts that all lack what is counted has no value
        if not len(spread):
            return float("nan"), float("nan")
        tail = (1 - LEVEL) / 2
        low, high = torch.quantile(spread, torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
        return low, high


def _draws(prompts: int, seed: int) -> Iterator[Tensor]:
    """How often each draw has each prompt, `RESAMPLES` draws in blocks of bounded memory: (draws, prompts)."""
    generator = torch.Generator().manual_seed(seed)
    for block in torch.arange(RESAMPLES).split(max(1, BLOCK // prompts)):
        drawn = torch.randint(prompts, (len(block), prompts), generator=generator)
        places = drawn + prompts * torch.arange(len(block))[:, None]
        yield places.flatten().bincount(minlength=places.numel()).view_as(places).double()
