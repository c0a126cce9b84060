"""Langevin dynamics on the vocabulary simplex: its gradient is right and its energy goes down."""

from __future__ import annotations

import pytest
import torch

from decoding.baselines import SimplexLangevin
from mucola.constraints import keyword, prompt
from mucola.errors import MucolaError
from mucola.language_model import LanguageModel
from mucola.pool import Request
from mucola.prompts import Prompt
from mucola.randomness import stream


def requests(lm: LanguageModel) -> list[Request]:
    made = [
        Request(Prompt.of(text, lm), 6, [prompt("This is amazing", "This is terrible")]) for text in ("The dog", "")
    ]
    for request in made:
        request.prepare(lm)
    return made


def test_the_gradient_is_that_of_the_energy(lm: LanguageModel) -> None:
    method, wanted = SimplexLangevin(weight=30.0), requests(lm)
    logits = method.start(lm, wanted, [stream(0, n) for n in range(2)])
    logits += 0.1 * torch.randn(logits.shape, generator=stream(1))
    gradient = method.energy(lm, wanted, logits)[1]
    assert gradient.isfinite().all()
    step = 0.02 * gradient / gradient.norm(dim=(1, 2), keepdim=True)
    rise = method.energy(lm, wanted, logits + step)[0] - method.energy(lm, wanted, logits - step)[0]
    assert torch.allclose(rise, 2 * (gradient * step).sum(dim=(1, 2)), rtol=0.05)


def test_the_energy_goes_down(lm: LanguageModel) -> None:
    wanted = requests(lm)
    energies = []
    for steps in (1, 30):
        method = SimplexLangevin(steps=steps, weight=30.0)
        logits = method.descend(lm, wanted, [stream(0, n) for n in range(2)])
        energies.append(method.energy(lm, wanted, logits)[0])
    assert (energies[1] < energies[0] - 0.5).all()


def test_a_heavy_constraint_is_satisfied(lm: LanguageModel) -> None:
    """A keyword that plain samples do not have."""
    wanted = [Request(Prompt.of("The dog", lm), 6, [keyword("beach")], sample) for sample in range(4)]
    held = [item.verified for item in SimplexLangevin(steps=50, weight=30.0, step_size=2.0).decoder(lm).run(wanted)]
    free = [item.verified for item in SimplexLangevin(steps=50, weight=0.0, step_size=2.0).decoder(lm).run(wanted)]
    assert sum(map(bool, held)) > sum(map(bool, free))


def test_settings_that_cannot_be() -> None:
    with pytest.raises(MucolaError, match="steps must be at least 1"):
        SimplexLangevin(steps=0)
    with pytest.raises(MucolaError, match="above 0"):
        SimplexLangevin(temperature=0)
