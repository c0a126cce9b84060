from __future__ import annotations

import pytest
import torch

from mucola import calibration
from mucola.calibration import SMOLLM2, SMOLLM2_GEOMETRY, calibrate
from mucola.lagrangian import Ascent
from mucola.language_model import LanguageModel
from mucola.schedules import Noise
from mucola.settings import Settings

from .conftest import make_model


def test_an_unknown_model_is_scaled_by_its_geometry(lm: LanguageModel) -> None:
    found = calibrate(lm)
    r, g = found.distance / SMOLLM2_GEOMETRY.distance, found.gradient / SMOLLM2_GEOMETRY.gradient
    made = calibration.dynamics(lm, Settings(mode="faithful"))
    # A step crosses the same share of the nearest-row distance, and so does the noise.
    assert made.step_size.start * found.gradient / found.distance == pytest.approx(
        SMOLLM2.step_size.start * SMOLLM2_GEOMETRY.gradient / SMOLLM2_GEOMETRY.distance
    )
    reference = SMOLLM2.step_size.start * SMOLLM2.noise["faithful"].start / SMOLLM2_GEOMETRY.distance**2
    assert made.step_size.start * made.noise.start / found.distance**2 == pytest.approx(reference)
    assert (r, g) != (1.0, 1.0)


def test_the_nearest_distance_is_measured_between_different_rows(lm: LanguageModel) -> None:
    allowed = lm.table.weight[lm.table.allowed]
    distances = torch.cdist(allowed, allowed).fill_diagonal_(torch.inf).amin(dim=1)
    assert calibrate(lm).distance == pytest.approx(distances.median().item(), rel=0.05)


def test_gpt2_has_the_papers_numbers_and_settings_win(tokenizer) -> None:  # type: ignore[no-untyped-def]
    lm = LanguageModel(make_model("gpt2", len(tokenizer)), tokenizer, "gpt2")
    made = calibration.dynamics(lm, Settings(mode="faithful"))
    assert (made.noise, made.ascent) == (Noise(5.0, 0.05, 100), Ascent(rate=1.0, period=20, damping=0.1))
    assert calibration.dynamics(lm, Settings(noise=Noise(1.0, 0.5, 3))).noise == Noise(1.0, 0.5, 3)
    assert calibration.dynamics(lm, Settings(ascent=Ascent(rate=2.0))).ascent == Ascent(rate=2.0)
