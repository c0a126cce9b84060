from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import mucola
from mucola.constraints import Constraint, keyword
from mucola.errors import MucolaError
from mucola.language_model import LanguageModel
from mucola.pool import Request
from mucola.prompts import Prompt, Sequences
from mucola.sampler import Sample, Sampler
from mucola.schedules import Noise, StepSize
from mucola.settings import Settings
from mucola.trace import Trace
from mucola.verification import encode_continuation

# What suits the tiny model: chains settle in a few steps.
TINY = {"step_size": StepSize(0.1, 0.125, 10), "noise": Noise(0.02, 0.001, 20)}
FAITHFUL = Settings(mode="faithful", steps=40, restarts=0, **TINY)  # type: ignore[arg-type]
FAST = Settings(mode="fast", steps=40, restarts=0, proposals=8, **TINY)  # type: ignore[arg-type]


class Broken(Constraint):
    """Has no value for texts that begin with an odd token, of which a plain sample never consists alone."""

    name, threshold, chance = "broken", 0.0, 0.0

    def value(self, sequences: Sequences) -> Tensor:
        odd = (sequences.tokens[:, 0] % 2).bool()
        return torch.where(odd, math.nan, -1.0) + 0 * sequences.embeddings.sum((1, 2))


class Never(Constraint):
    """Cannot be satisfied."""

    name, threshold = "never", -1.0

    def value(self, sequences: Sequences) -> Tensor:
        return sequences.embeddings.square().sum((1, 2))


def facts(samples: list[Sample]) -> list[tuple[str, list[int] | None, str]]:
    return [(sample.text, sample.tokens, sample.source) for sample in samples]


@pytest.mark.parametrize("settings", [FAITHFUL, FAST])
def test_the_same_seed_gives_the_same_samples_and_another_others(lm: LanguageModel, settings: Settings) -> None:
    first, again, other = (
        Sampler(lm, settings).sample("The book", 8, 4, ['keyword("dog")'], seed=seed) for seed in (0, 0, 1)
    )
    assert facts(first) == facts(again)
    assert facts(first) != facts(other)
    assert len({sample.text for sample in first}) > 1, "samples of one prompt differ"


@pytest.mark.parametrize("settings", [FAITHFUL, FAST])
def test_samples_do_not_depend_on_batch_size_or_company(lm: LanguageModel, settings: Settings) -> None:
    word = keyword("dog")
    requests = [
        Request(Prompt.of(text, lm), length, [word], index)
        for text, length in (("The book", 8), ("", 8), ("A dog ran to", 6))
        for index in range(2)
    ]
    together = {(s.prompt, s.sample): facts([s]) for s in Sampler(lm, settings).run(requests)}
    for size in (1, 4):
        narrow = Sampler(lm, replace(settings, batch_size=size)).run(reversed(requests))
        assert {(s.prompt, s.sample): facts([s]) for s in narrow} == together


@pytest.mark.parametrize(("settings", "most"), [(replace(FAITHFUL, batch_size=2), None), (FAST, 2)])
def test_every_request_is_answered_once_and_refilled_as_chains_finish(
    lm: LanguageModel, settings: Settings, most: int | None
) -> None:
    taken, seen = [], []

    def requests():  # type: ignore[no-untyped-def]
        for index in range(7):
            taken.append(index)
            yield Request(Prompt.of("The book", lm), 5, [], index)

    for sample in Sampler(lm, settings, most).run(requests()):
        assert len(taken) - len(seen) <= 3, "requests are taken as there is room"
        seen.append(sample.sample)
    assert sorted(seen) == list(range(7))


def test_a_hard_request_does_not_hold_easy_ones_while_it_draws(lm: LanguageModel) -> None:
    hard = Request(Prompt.of("The book", lm), 5, [Never()], 0)
    easy = [Request(Prompt.of("The book", lm), 5, [], index) for index in range(1, 7)]
    sampler = Sampler(lm, replace(FAST, batch_size=2, proposals=32))
    assert [sample.sample for sample in sampler.run([hard, *easy])] == [1, 2, 3, 4, 5, 6, 0]


def test_a_plain_sample_that_satisfies_everything_is_ancestral(lm: LanguageModel) -> None:
    for sample in Sampler(lm, FAST).sample("The book", 6, 5):
        assert (sample.source, sample.steps, sample.verified) == ("ancestral", 0, True)


def test_faithful_samples_are_never_ancestral(lm: LanguageModel) -> None:
    samples = Sampler(lm, FAITHFUL).sample("The book", 6, 5)
    assert {sample.source for sample in samples} <= {"langevin", "fallback"}
    assert all(sample.steps and sample.evaluations for sample in samples)


def test_a_chain_that_finds_nothing_restarts_and_then_falls_back_openly(lm: LanguageModel) -> None:
    for mode in ("faithful", "fast"):
        settings = Settings(mode=mode, steps=10, restarts=2, proposals=2)  # type: ignore[arg-type]
        for sample in Sampler(lm, settings).sample("The book", 5, 2, [Never()]):
            assert (sample.source, sample.satisfied, sample.verified) == ("fallback", False, False)
            assert (sample.restarts, sample.steps) == (2, 30)
            assert sample.values["never"]["value"] > -1


def test_a_chain_without_a_finite_energy_restarts_and_leaves_the_others_alone(lm: LanguageModel) -> None:
    settings = replace(FAITHFUL, restarts=6)
    samples = Sampler(lm, settings).sample("The book", 5, 6, [Broken()])
    restarted = [sample for sample in samples if sample.restarts]
    assert restarted
    fine = [sample for sample in samples if sample.source == "langevin"]
    assert fine
    assert all(sample.tokens and sample.tokens[0] % 2 == 0 for sample in fine)


def test_results_tell_their_numbers(lm: LanguageModel) -> None:
    sample = Sampler(lm, FAST).sample("The dog", 6, 1, ['prompt("This is amazing", "This is terrible")'])[0]
    assert sample.tokens is not None
    assert sample.nll == pytest.approx(lm.score(sample.tokens, lm.encode("The dog")), abs=1e-3)
    value = sample.values['prompt("This is amazing", "This is terrible")']
    assert sample.satisfied == (value["value"] <= value["threshold"])
    assert lm.tokenizer.decode([*lm.encode("The dog"), *sample.tokens]) == "The dog" + sample.text


def test_texts_are_verified_as_a_reader_sees_them(lm: LanguageModel) -> None:
    """Tokens that spell a word in an unusual way are read back as the usual ones."""
    prompt = Prompt.of("The", lm)
    usual = lm.encode(" dog")
    letters = [token for part in (" ", "d", "o", "g") for token in lm.encode(part)]
    assert tuple(letters) != usual
    assert tuple(encode_continuation(lm, prompt, lm.tokenizer.decode(letters))) == usual


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "at least 1 token"),
        ({"length": 500}, "do not fit"),
        ({"num_samples": 0}, "at least 1"),
        ({"constraints": ['keyword("surfboard")', 'keyword("painting")'], "length": 6}, "tokens are needed"),
        ({"constraints": ['keyword("dog")', 'exclude("dog")']}, "drop one"),
        ({"constraints": ['classifier("positive") > 0.9']}, "trained on the embedding table"),
        ({"constraints": ['classifier("positive", "nowhere") > 0.9']}, "no attribute model"),
    ],
)
def test_what_cannot_be_done_is_refused_before_any_work(lm: LanguageModel, options: dict, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(MucolaError, match=message):
        Sampler(lm, FAST).sample("The book", **options)


def test_settings_are_checked() -> None:
    with pytest.raises(MucolaError, match="fast, faithful"):
        Settings(mode="quick")  # type: ignore[arg-type]
    with pytest.raises(MucolaError, match="steps"):
        Settings(steps=0)


def test_a_trace_has_every_step_and_survives_a_file(lm: LanguageModel, tmp_path) -> None:  # type: ignore[no-untyped-def]
    (sample,) = Sampler(lm, FAITHFUL).sample("The book", 6, 1, ['keyword("dog")'], trace=True)
    (trace,) = sample.traces
    assert len(trace.steps) == (sample.steps or 0) + 1
    assert trace.constraints == ['keyword("dog")']
    moved = sum(a.tokens != b.tokens for a, b in zip(trace.steps, trace.steps[1:], strict=False))
    assert sample.evaluations == moved + 1
    trace.save(tmp_path / "trace.json.gz")
    assert Trace.load(tmp_path / "trace.json.gz") == trace
    trace.plot(tmp_path / "trace.png")
    assert (tmp_path / "trace.png").stat().st_size > 5000


def test_transformers_generate_takes_it_as_a_decoding_function(lm: LanguageModel) -> None:
    lm.tokenizer.pad_token = lm.tokenizer.eos_token
    lm.tokenizer.padding_side = "left"
    inputs = lm.tokenizer(["The book", "A dog ran to the"], return_tensors="pt", padding=True)
    found = lm.model.generate(
        **inputs,
        max_new_tokens=6,
        custom_generate=mucola.generate,
        constraints=['exclude("war")'],
        text_tokenizer=lm.tokenizer,
        settings=FAST,
        seed=3,
    )
    assert found.shape == (2, inputs.input_ids.shape[1] + 6)
    assert torch.equal(found[:, :-6], inputs.input_ids)
    expected = Sampler(lm, FAST)
    prompts = [Prompt(t, lm.encode(t), str(lm.encode(t))) for t in ("The book", "A dog ran to the")]
    requests = [Request(p, 6, mucola.constraints.parse('exclude("war")'), row) for row, p in enumerate(prompts)]
    tokens = {sample.sample: sample.tokens for sample in expected.run(requests, seed=3)}
    assert found[:, -6:].tolist() == [tokens[0], tokens[1]]
