from __future__ import annotations

import pytest
import torch

from mucola import langevin
from mucola.constraints import exclude, keyword
from mucola.constraints.words import appears
from mucola.drafts import draft
from mucola.lagrangian import Ascent
from mucola.langevin import Batch, Chain, Dynamics
from mucola.language_model import LanguageModel
from mucola.pool import Request
from mucola.prompts import Prompt, continuation_text
from mucola.schedules import Noise, StepSize

WORDS = ("beach", "dog", "surfboard")


def request(lm: LanguageModel, prompt: str, length: int, words: tuple[str, ...] = WORDS) -> Request:
    made = Request(Prompt.of(prompt, lm), length, [*(keyword(word) for word in words), exclude("the")])
    made.prepare(lm)
    return made


def uniforms(rows: int, length: int, seed: int = 0) -> list[torch.Tensor]:
    return list(torch.rand(rows, length, 2, generator=torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize("prompt", ["", "The book"])
def test_every_draft_has_every_word(lm: LanguageModel, prompt: str) -> None:
    wanted = request(lm, prompt, 16)
    rows, nll = draft(lm, [wanted] * 30, uniforms(30, 16))
    assert torch.allclose(nll, lm.nll(lm.table.rows(rows), rows, [lm.prefix(wanted.prompt.tokens)] * 30), rtol=1e-4)
    texts = [continuation_text(lm, wanted.prompt, row) for row in rows.tolist()]
    assert all(appears([word], prompt, text) for text in texts for word in WORDS)
    assert not torch.isin(rows, wanted.constraints[-1].banned).any(), "excluded tokens are not written"
    first = wanted.constraints[0].spellings[0][0]  # type: ignore[attr-defined]
    places = {row.index(int(first)) for row in rows.tolist()}
    assert len(places) > 3, "a word is not always at the same place"


def test_words_that_fill_the_whole_text_are_all_there_is(lm: LanguageModel) -> None:
    wanted = request(lm, "The book", 64)
    least = sum(item.least_tokens() for item in wanted.constraints)
    rows = draft(lm, [request(lm, "The book", least)] * 5, uniforms(5, least)).tokens
    texts = [continuation_text(lm, wanted.prompt, row) for row in rows.tolist()]
    assert all(sorted(text.split()) == sorted(WORDS) for text in texts)


def test_a_draft_does_not_depend_on_its_batch(lm: LanguageModel) -> None:
    requests = [request(lm, prompt, 12) for prompt in ("The book", "", "A dog", "The book")]
    drawn = uniforms(4, 12)
    together = draft(lm, requests, drawn).tokens
    alone = [draft(lm, [one], [each]).tokens[0] for one, each in zip(requests, drawn, strict=True)]
    assert together.tolist() == torch.stack(alone).tolist()


def test_words_that_stand_stay_while_the_rest_moves(lm: LanguageModel) -> None:
    wanted = request(lm, "The book", 12)
    tokens = draft(lm, [wanted] * 4, uniforms(4, 12)).tokens
    lost = {}
    for keeps_words in (True, False):
        chains = [Chain(wanted.prompt, wanted.constraints, torch.Generator().manual_seed(row)) for row in range(4)]
        batch = Batch(lm, chains)
        dynamics = Dynamics(StepSize(0.5, 0.6), Noise(1.0, 1.0, 1), Ascent(), keeps_words=keeps_words)
        state = langevin.init(batch, tokens, dynamics)
        lost[keeps_words] = 0
        for _ in range(10):
            state, _ = langevin.step(batch, state, dynamics)
            lost[keeps_words] += int((~state.holds[:, :3]).sum())
        assert (state.tokens != tokens).any(dim=1).all()
    assert lost[True] == 0 < lost[False]
