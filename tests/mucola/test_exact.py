"""`fast` against the exact constrained distribution, written down sequence by sequence."""

from __future__ import annotations

import pytest
import torch

from mucola.pool import Request
from mucola.prompts import Prompt, Sequences
from mucola.sampler import Sampler
from mucola.settings import Settings

from . import exact

COUNT = 4000


def test_probabilities_sum_to_one() -> None:
    lm = exact.language_model()
    assert exact.exact_probabilities(lm, (1, 2)).sum().item() == pytest.approx(1.0, abs=1e-4)


def test_ancestral_samples_follow_the_exact_constrained_distribution() -> None:
    lm = exact.language_model()
    prompt = Prompt("w1 w2", (1, 2), "p")
    constraint = exact.Bright()
    everything = Sequences.of(lm, [prompt] * exact.WORDS**exact.LENGTH, exact.all_sequences())
    feasible = constraint.value(everything) <= 0
    target = exact.exact_probabilities(lm, (1, 2)) * feasible
    share = target.sum().item()
    assert 0.1 < share < 0.9, "the constraint is neither trivial nor hopeless"
    target = target / target.sum()

    settings = Settings(mode="fast", nucleus=1.0, proposals=64, batch_size=500, steps=1, restarts=0)
    requests = (Request(prompt, exact.LENGTH, [constraint], index) for index in range(COUNT))
    samples = [sample for sample in Sampler(lm, settings).run(requests) if sample.source == "ancestral"]
    assert len(samples) > 0.99 * COUNT
    drawn = exact.index(torch.tensor([sample.tokens for sample in samples]))
    assert feasible[drawn].all()

    # As far from the target as an exact sample of the same size is, and no further.
    generator = torch.Generator().manual_seed(0)
    ideal = [
        exact.total_variation(torch.multinomial(target, len(drawn), True, generator=generator), target)
        for _ in range(20)
    ]
    mean, spread = torch.tensor(ideal).mean().item(), torch.tensor(ideal).std().item()
    assert exact.total_variation(drawn, target) < mean + 4 * spread
    # The unconstrained distribution is told apart from it, so the test can fail.
    unconstrained = exact.exact_probabilities(lm, (1, 2))
    assert exact.total_variation(drawn, unconstrained / unconstrained.sum()) > mean + 20 * spread
