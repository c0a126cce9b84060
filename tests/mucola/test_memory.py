"""Running out of memory costs time, not chains."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mucola.constraints import Constraint, keyword
from mucola.errors import MucolaError
from mucola.language_model import LanguageModel
from mucola.memory import chains_that_fit
from mucola.pool import Request
from mucola.prompts import Prompt, Sequences
from mucola.sampler import Sample, Sampler
from mucola.schedules import Noise, StepSize
from mucola.settings import Settings

FAITHFUL = Settings(
    mode="faithful", steps=12, restarts=1, step_size=StepSize(0.1, 0.125, 10), noise=Noise(0.02, 0.001, 20)
)
FAST = replace(FAITHFUL, mode="fast", proposals=4)


class Hungry(Constraint):
    """Holds always, and asks the allocator for more than there is when it sees too many texts at once."""

    name, threshold = "hungry", 0.0

    def __init__(self, most: int) -> None:
        self.most = most
        self.failures = 0

    def value(self, sequences: Sequences) -> Tensor:
        if len(sequences) > self.most:
            self.failures += 1
            torch.empty(2**50)
        return 0 * sequences.embeddings.sum((1, 2)) - 1


def facts(samples: list[Sample]) -> list[tuple[int, list[int] | None, str, int | None, float | None]]:
    return [(sample.sample, sample.tokens, sample.source, sample.steps, sample.nll) for sample in samples]


@pytest.mark.parametrize("settings", [FAITHFUL, FAST])
def test_chains_go_on_exactly_when_memory_runs_out(lm: LanguageModel, settings: Settings) -> None:
    words = [keyword("dog"), keyword("sea")]
    hungry, modest = Hungry(most=2), Hungry(most=1000)
    starved = Sampler(lm, replace(settings, batch_size=8)).sample("The book", 8, 5, [hungry, *words])
    plenty = Sampler(lm, replace(settings, batch_size=8)).sample("The book", 8, 5, [modest, *words])
    assert 1 <= hungry.failures <= 4, "five chains or 32 drafts at once do not fit; halved until two do"
    assert [row[:4] for row in facts(starved)] == [row[:4] for row in facts(plenty)]
    for a, b in zip(starved, plenty, strict=True):
        assert a.nll == pytest.approx(b.nll, abs=1e-3)


def test_a_single_chain_that_does_not_fit_is_an_error_to_read(lm: LanguageModel) -> None:
    with pytest.raises(MucolaError, match="memory for a single chain"):
        Sampler(lm, FAITHFUL).sample("The book", 8, 3, [Hungry(most=0)])


def test_other_errors_are_not_taken_for_a_lack_of_memory(lm: LanguageModel) -> None:
    class Wrong(Hungry):
        def value(self, sequences: Sequences) -> Tensor:
            return torch.ones(2, 3) @ torch.ones(2, 3)

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        Sampler(lm, FAITHFUL).sample("The book", 8, 2, [Wrong(0)])


def test_batch_size_follows_from_memory(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chains_that_fit(lm) == 24, "as many as keep a core busy, for a tiny model"
    monkeypatch.setattr("mucola.memory.free_bytes", lambda device: 40 * 2**20)
    assert 1 <= chains_that_fit(lm) < 24
    monkeypatch.setattr("mucola.memory.free_bytes", lambda device: 0)
    assert chains_that_fit(lm) == 1


def test_chains_with_few_constraints_outlive_one_with_many(lm: LanguageModel) -> None:
    """The columns of constraints shrink with the chains that need them."""
    many = [keyword(word) for word in ("dog", "sea", "book")]
    first = Request(Prompt.of("The", lm), 8, many, 0)
    rest = [Request(Prompt.of("The", lm), 8, many[:count], 1 + count) for count in (2, 1, 0)]
    settings = replace(FAITHFUL, batch_size=3, restarts=0)
    together = {sample.sample: facts([sample])[0][:4] for sample in Sampler(lm, settings).run([first, *rest])}
    alone = {request.sample: facts(list(Sampler(lm, settings).run([request])))[0][:4] for request in (first, *rest)}
    assert together == alone
