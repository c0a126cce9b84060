"""Guided drafts against the exact distribution that they stand for, written down sequence by sequence."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from mucola import proposals
from mucola.constraints import Constraint, exclude, prompt
from mucola.guided import guided_draft
from mucola.language_model import LanguageModel
from mucola.pool import Request
from mucola.prompts import Prompt, Sequences
from mucola.proposals import ENOUGH_TO_TELL, GUIDED_ROUNDS, PLAIN_BEFORE_GUIDED, stages
from mucola.sampler import Sampler
from mucola.settings import Settings
from mucola.verification import Check

from . import exact

START = Prompt("w1 w2", (1, 2), "p")
COUNT = 4000


def request(lm: LanguageModel, *constraints: Constraint, sample: int = 0) -> Request:
    made = Request(START, exact.LENGTH, constraints, sample)
    made.prepare(lm)
    return made


def pair() -> Constraint:
    return prompt("w7 w9", "w3 w5")


def strict(lm: LanguageModel, share: float) -> tuple[Constraint, Tensor]:
    """A pair of which at most this share of the plain samples satisfies what it asks for, and which they are."""
    constraint = pair()
    constraint.prepare(lm)
    values = constraint.value(everything(lm))
    order = values.argsort()
    mass = exact.exact_probabilities(lm, START.tokens)[order].cumsum(0)
    value = values[order][(mass < share).sum() - 1].item()
    constraint = constraint > torch.tensor(-value * (exact.LENGTH + len(START.tokens))).sigmoid().item()  # type: ignore[operator]
    constraint.prepare(lm)
    return constraint, constraint.evaluate(everything(lm)).holds


def everything(lm: LanguageModel) -> Sequences:
    return Sequences.of(lm, [START] * exact.WORDS**exact.LENGTH, exact.all_sequences())


def drafts(lm: LanguageModel, requests: Sequence[Request], strength: float, nucleus: float = 1.0) -> tuple[Tensor, ...]:
    uniforms = torch.rand(len(requests), exact.LENGTH, generator=torch.Generator().manual_seed(0))
    written, weights = guided_draft(lm, requests, list(uniforms), torch.full((len(requests),), strength), nucleus)
    return written.tokens, written.nll, weights


def log_probabilities(lm: LanguageModel, before: tuple[int, ...]) -> Tensor:
    """Of every word at every place of every sequence, as transformers computes them: (sequences, length, words)."""
    tokens = exact.all_sequences()
    ids = torch.cat([torch.tensor([before]).expand(len(tokens), -1), tokens], dim=1)
    with torch.no_grad():
        logits = torch.cat([lm.model(input_ids=part).logits for part in ids.split(3000)])
    return logits[:, len(before) - 1 : -1].log_softmax(dim=-1)


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.5])
def test_drafts_are_led_as_the_advice_says_and_the_weights_know_how_far(strength: float) -> None:
    lm = exact.language_model()
    tokens, nll, weights = drafts(lm, [request(lm, pair())] * COUNT, strength)
    plain, label, other = (log_probabilities(lm, (*before, *START.tokens)) for before in ((), (7, 9), (3, 5)))
    led = (plain + strength * (label - other)).log_softmax(dim=-1)
    own = exact.all_sequences()[:, :, None]
    exactly, guided = (each.gather(2, own).squeeze(2).sum(dim=1) for each in (plain, led))
    drawn = exact.index(tokens)
    assert torch.allclose(nll, -exactly[drawn], atol=1e-3)
    assert torch.allclose(weights, (exactly - guided)[drawn], atol=1e-3)
    distance = exact.total_variation(drawn, guided.exp())
    generator = torch.Generator().manual_seed(0)
    ideal = exact.total_variation(torch.multinomial(guided.exp(), COUNT, True, generator=generator), guided.exp())
    assert distance < 1.3 * ideal
    if strength:
        assert exact.total_variation(drawn, exactly.exp()) > 3 * distance, "they are no plain samples"


def test_the_stronger_the_advice_the_more_drafts_satisfy() -> None:
    lm = exact.language_model()
    constraint, holds = strict(lm, 0.05)
    shares = [
        holds[exact.index(drafts(lm, [request(lm, constraint)] * COUNT, strength)[0])].float().mean().item()
        for strength in (0.0, 0.5, 1.0, 2.0)
    ]
    assert shares[0] == pytest.approx(0.05, abs=0.03)
    assert shares == sorted(shares)
    assert shares[-1] > 0.5


def test_a_draft_does_not_depend_on_its_batch() -> None:
    lm = exact.language_model()
    other = Request(Prompt("w4", (4,), "q"), exact.LENGTH, request(lm, pair()).constraints)
    requests = [request(lm, *other.constraints), other, request(lm, *other.constraints)]
    uniforms = list(torch.rand(3, exact.LENGTH, generator=torch.Generator().manual_seed(1)))
    strengths = torch.tensor([0.5, 1.0, 2.0])
    together, weights = guided_draft(lm, requests, uniforms, strengths, 0.9)
    for row in range(3):
        alone, weight = guided_draft(lm, [requests[row]], [uniforms[row]], strengths[row : row + 1], 0.9)
        assert alone.tokens[0].tolist() == together.tokens[row].tolist()
        assert weight.item() == pytest.approx(weights[row].item(), abs=1e-4)


def test_excluded_tokens_are_not_written_and_the_weights_know() -> None:
    lm = exact.language_model()
    asked = request(lm, pair(), exclude("w0", "w4", "w11", "w20"))
    tokens, _, weights = drafts(lm, [asked] * COUNT, 0.1)
    banned = asked.constraints[1].banned
    assert banned is not None
    assert not torch.isin(tokens, banned).any()
    free = ~torch.isin(exact.all_sequences(), banned).any(dim=1)
    expected = exact.exact_probabilities(lm, START.tokens)[free].sum().item()
    assert expected < 0.95
    assert weights.exp().mean().item() == pytest.approx(expected, rel=0.05)


def test_what_plain_samples_hardly_satisfy_is_drafted() -> None:
    lm = exact.language_model()
    constraint, holds = strict(lm, 0.003)
    sampler = Sampler(lm, Settings(mode="fast", nucleus=1.0, steps=1, restarts=0, batch_size=1000))
    samples = list(sampler.run(request(lm, constraint, sample=number) for number in range(300)))
    drafted = [sample for sample in samples if sample.source == "draft"]
    assert len(drafted) > 150
    assert all(sample.verified for sample in drafted)
    exactly = exact.exact_probabilities(lm, START.tokens)
    target = torch.where(holds, exactly, 0.0) / exactly[holds].sum()
    drawn = exact.index(torch.tensor([sample.tokens for sample in drafted]))
    assert holds[drawn].all()
    # Nearer to what is usual among exact samples than drafts are that were not resampled by their weights.
    usual = (target[holds] * -exactly[holds].log()).sum().item()
    tokens, nll, _ = drafts(lm, [request(lm, constraint)] * COUNT, 2.0)
    unweighted = nll[holds[exact.index(tokens)]].mean().item()
    assert abs(-exactly[drawn].log().mean().item() - usual) < 0.75 * abs(unweighted - usual)


def test_what_is_drafted_does_not_depend_on_the_room_there_is() -> None:
    lm = exact.language_model()
    constraint, _ = strict(lm, 0.003)
    found = []
    for size in (1, 3, 1000):
        sampler = Sampler(lm, Settings(nucleus=1.0, steps=1, restarts=0, batch_size=size))
        samples = sampler.run(request(lm, constraint, sample=number) for number in range(60))
        found.append(sorted((sample.sample, sample.source, sample.tokens) for sample in samples))
    assert found[0] == found[1] == found[2]
    assert "draft" in {source for _, source, _ in found[0]}


def test_guided_drafts_are_written_within_what_the_settings_allow() -> None:
    lm = exact.language_model()
    asked = request(lm, pair())
    assert [stage.way for stage in stages(asked, Settings())] == ["plain", *["guided"] * GUIDED_ROUNDS]
    assert [stage.way for stage in stages(asked, Settings(proposals=PLAIN_BEFORE_GUIDED))] == ["plain"]
    assert [stage.way for stage in stages(request(lm, exact.Bright()), Settings())] == ["plain"]


def test_plain_samples_end_early_where_they_tell_that_none_will_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = exact.language_model()
    draw, spent = proposals.draw, [0]

    def counted(
        lm: LanguageModel, requests: Sequence[Request], uniforms: Sequence[Tensor], nucleus: float
    ) -> list[Check]:
        spent[0] += len(requests)
        return draw(lm, requests, uniforms, nucleus)

    monkeypatch.setattr(proposals, "draw", counted)

    def plain(share: float, wanted: int = 100) -> float:
        """Plain samples per output where this share of them passes."""
        spent[0] = 0
        constraint, _ = strict(lm, share)
        sampler = Sampler(lm, Settings(nucleus=1.0, steps=1, restarts=0, batch_size=1000))
        assert len(list(sampler.run(request(lm, constraint, sample=number) for number in range(wanted)))) == wanted
        return spent[0] / wanted

    assert plain(0.3) < ENOUGH_TO_TELL, "what passes often is soon found"
    assert plain(0.03) > 1.5 * ENOUGH_TO_TELL, "what passes now and then is waited for"
    assert plain(1e-4) < 1.25 * ENOUGH_TO_TELL, "what as good as never passes is not"
