"""K2T and beam search: the words are there, as words of their own, and the beam finds the likeliest text."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import pytest
import torch

from decoding.baselines import K2T, BeamSearch, K2TProcessor
from decoding.baselines.batches import Baseline
from decoding.baselines.beam_search import Hypothesis, Search
from decoding.baselines.wanted_words import Word
from mucola.constraints import exclude, keyword
from mucola.constraints.words import spelling, whole_word
from mucola.errors import MucolaError
from mucola.generations import Generation
from mucola.language_model import LanguageModel
from mucola.pool import Request
from mucola.prompts import Prompt, Sequences
from mucola.randomness import stream

WORDS = [["beach", "surfboard"], ["long road", "dog"], ["boat"]]
"""Of one token and of several, a phrase, and one that the model would rather go on with: boats."""


def requests(lm: LanguageModel, samples: int = 3) -> list[Request]:
    made = []
    for number, (text, words) in enumerate(zip(["The dog", "", "We like the sea, the sun and"], WORDS, strict=True)):
        prompt, constraints = Prompt.of(text, lm, id=str(number)), [keyword(word) for word in words]
        made += [Request(prompt, 12 + number, constraints, sample) for sample in range(samples)]
    return made


def tokens(generations: Sequence[Generation]) -> dict[tuple[str, int], list[int] | None]:
    return {(item.prompt_id, item.sample): item.tokens for item in generations}


@pytest.mark.parametrize("method", [K2T(), BeamSearch(beams=12)], ids=["k2t", "beam_search"])
def test_every_keyword_is_there_as_a_word_whatever_the_batch(method: Baseline, lm: LanguageModel) -> None:
    wanted = requests(lm)
    found = list(method.decoder(lm).run(wanted, seed=1))
    assert len({lm.tokenizer.decode(item.tokens) for item in found}) > len(WORDS), "samples of a prompt differ"
    for item in found:
        assert item.source == method.name
        assert item.satisfied
        assert item.verified
        assert all(whole_word(word).search(item.text) for word in WORDS[int(item.prompt_id)])
    alone = list(method.sharing(1).decoder(lm).run(reversed(wanted), seed=1))
    assert tokens(alone) == tokens(found)


@pytest.mark.parametrize("method", [K2T(), BeamSearch(beams=12)], ids=["k2t", "beam_search"])
def test_any_of_several_forms_and_no_room_to_spare(method: Baseline, lm: LanguageModel) -> None:
    constraint = keyword("surfboard", "sand")
    constraint.prepare(lm)
    length = constraint.least_tokens()
    (found,) = method.decoder(lm).run([Request(Prompt.of("A", lm), length, [constraint])])
    assert found.verified
    assert found.text.strip() == "sand"


def test_k2t_adds_the_similarity_to_the_closest_missing_keyword(lm: LanguageModel) -> None:
    request = Request(Prompt.of("The dog", lm), 12, [keyword("beach"), keyword("surfboard")])
    spellings = {word: list(spelling(word, lm)) for word in ("beach", "surfboard")}
    scores = torch.randn(1, len(lm.table), generator=torch.Generator().manual_seed(0))
    rows = lm.table.weight / lm.table.weight.norm(dim=1, keepdim=True)

    def similarity(word: str) -> torch.Tensor:
        mean = lm.table.weight[spellings[word]].mean(dim=0)
        cosine = rows @ (mean / mean.norm())
        shifted = ((cosine - cosine.mean()) / (1 - cosine.mean())).clamp(min=0)
        shifted[spellings[word][0]] = 1
        return shifted

    for written, missing in (
        ("", ["beach", "surfboard"]),
        (" surfboard.", ["beach"]),
        (" beach. The beach.", ["surfboard"]),
    ):
        ids = torch.tensor([[*request.prompt.tokens, *lm.tokenizer(written).input_ids]])
        found = K2TProcessor(lm, [request], weight=3.0, guarantee=False)(ids, scores)
        added = 3.0 * torch.stack([similarity(word) for word in missing]).amax(dim=0)
        assert torch.allclose(found, scores.log_softmax(dim=1) + added, atol=1e-4)


def test_without_the_guarantee_words_may_be_missing(lm: LanguageModel) -> None:
    assert not all(item.verified for item in K2T(weight=0.1, guarantee=False).decoder(lm).run(requests(lm)))


@pytest.mark.parametrize("words", [["beach"], ["boat"], ["sand", "sun"]])
def test_a_wide_beam_finds_the_likeliest_text_of_all(words: list[str], lm: LanguageModel) -> None:
    """Every text of the length that holds the words' tokens, scored one by one."""
    spelled = [spelling(word, lm) for word in words]
    length = sum(map(len, spelled)) + 1
    constraints = [keyword(word) for word in words]
    prompt = Prompt.of("The dog", lm)
    allowed = [(token,) for token in lm.table.allowed.nonzero().squeeze(1).tolist()]
    texts = []
    for free in allowed:
        for order in itertools.permutations([*spelled, free]):
            texts.append(list(itertools.chain(*order)))
    for constraint in constraints:
        constraint.prepare(lm)
    rows = torch.tensor(texts)
    sequences = Sequences.of(lm, [prompt] * len(rows), rows)
    held = torch.stack([item.evaluate(sequences).holds for item in constraints]).all(dim=0)
    with torch.no_grad():
        nll = lm.nll(sequences.embeddings, rows, sequences.prefixes()).masked_fill(~held, torch.inf)
    (found,) = BeamSearch(beams=2000).decoder(lm).run([Request(prompt, length, constraints)])
    assert found.nll == pytest.approx(nll.min().item(), abs=1e-3)


def test_the_beam_is_shared_among_those_with_more_and_fewer_keyword_tokens(lm: LanguageModel) -> None:
    words = [Word((word,), (spelling(word, lm),)) for word in ("boat", "dog")]
    total = Hypothesis().needs(words)
    search = Search(Request(Prompt.of("", lm), 20, []), words, beams=4 * (total + 1))
    for step in range(8):
        log_p = torch.randn(len(search.hypotheses), len(lm.table), generator=stream(0, step)).log_softmax(dim=1)
        search.step(log_p, lm.starts_word)
        assert len(search.hypotheses) <= search.beams
        sizes = Counter(item.needs(words) for item in search.hypotheses)
        assert all(sizes[need] for need in range(max(0, total - step - 1), total + 1))
    assert min(sizes.values()) >= 4, "each number has its equal share"


def test_samples_are_the_beam_from_its_best_on(lm: LanguageModel) -> None:
    prompt, constraints = Prompt.of("The dog", lm), [keyword("beach")]
    wanted = [Request(prompt, 8, constraints, sample) for sample in range(4)]
    found = sorted(BeamSearch(beams=8).decoder(lm).run(wanted), key=lambda item: item.sample)
    assert [item.nll for item in found] == sorted(item.nll or 0 for item in found)
    with pytest.raises(MucolaError, match="no sample number 8"):
        list(BeamSearch(beams=8).decoder(lm).run([Request(prompt, 8, constraints, 8)]))


@pytest.mark.parametrize("method", [K2T(), BeamSearch()], ids=["k2t", "beam_search"])
def test_a_prompt_without_keywords_is_refused(method: Baseline, lm: LanguageModel) -> None:
    with pytest.raises(MucolaError, match="prompt 'p7' has none"):
        list(method.decoder(lm).run([Request(Prompt.of("The dog", lm, id="p7"), 5, [exclude("war")])]))


def test_settings_that_cannot_be() -> None:
    with pytest.raises(MucolaError, match="weight of K2T"):
        K2T(weight=0)
    with pytest.raises(MucolaError, match="at least 1 hypothesis"):
        BeamSearch(beams=0)
