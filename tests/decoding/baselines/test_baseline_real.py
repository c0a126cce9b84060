"""Baselines on SmolLM2-135M: keywords by beam search, and a sentiment that a processor steers to."""

from __future__ import annotations

import pytest
import torch

from decoding.baselines import BeamSearch, GeDiProcessor
from mucola.constraints import classifier, keyword
from mucola.constraints.base import Constraint
from mucola.language_model import LanguageModel
from mucola.model_store import load_causal_lm
from mucola.pool import Request
from mucola.prompts import Prompt, Sequences

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def smollm() -> LanguageModel:
    return LanguageModel(*load_causal_lm("smollm2-135m"), "smollm2-135m")


def test_beam_search_writes_the_keywords_fluently(smollm: LanguageModel) -> None:
    words = ("beach", "surfboard")
    request = Request(Prompt.of("The dog", smollm), 12, [keyword(word) for word in words])
    (found,) = BeamSearch(beams=8).decoder(smollm).run([request])
    assert found.verified
    assert all(word in found.text for word in words)
    assert found.nll is not None
    assert found.nll / 12 < 4.0, "nats a token; the words at random places cost more than 6"


def test_gedi_steers_plain_generate(smollm: LanguageModel) -> None:
    """The model is its own class-conditional LM, after two phrases; the shipped classifier is the judge."""
    positive: Constraint = classifier("positive") > 0.9
    positive.prepare(smollm)
    conditions = [smollm.encode(text) for text in ("This is terrible. ", "This is amazing. ")]
    prompt = Prompt.of("The movie", smollm)
    surprise = []
    for wanted in (0, 1):
        torch.manual_seed(0)
        written = smollm.model.generate(
            input_ids=torch.tensor([prompt.tokens] * 3),
            max_new_tokens=8,
            min_new_tokens=8,
            do_sample=True,
            top_p=0.9,
            top_k=0,
            logits_processor=[GeDiProcessor(smollm.model, conditions, wanted)],
        )
        rows = written[:, len(prompt.tokens) :]
        surprise.append(positive.evaluate(Sequences.of(smollm, [prompt] * 3, rows)).values.mean().item())
    assert surprise[1] < surprise[0] - 0.5, "mean -log p(positive)"
