"""Every baseline through ``Decoder.run``: what it writes, and that company does not change it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from decoding.baselines import DAPT, FUDGE, BestOfN, DExperts, GeDi, Nucleus, SimplexLangevin
from decoding.baselines.left_to_right import Draw
from decoding.methods import Method
from mucola.constraints import Constraint, exclude, prompt
from mucola.errors import MucolaError
from mucola.generations import Generation
from mucola.language_model import LanguageModel
from mucola.pool import Request
from mucola.prompts import Prompt
from mucola.randomness import stream
from mucola.verification import check
from tests.mucola.conftest import make_model

from .conftest import save_adapter

PROMPTS = ["The dog", "", "We like the sea, the sun and"]
Folders = dict[str, str]
SAMPLERS: dict[str, Callable[[Folders], Method]] = {
    "nucleus": lambda folders: Nucleus(),
    "dapt": lambda folders: DAPT(folders["good"]),
    "dexperts": lambda folders: DExperts(folders["good"], folders["bad"]),
    "gedi": lambda folders: GeDi(folders["gedi"], "positive", scale=4.0),
    "fudge": lambda folders: FUDGE(folders["future"], "positive", candidates=40),
    "best_of_n": lambda folders: BestOfN(n=3),
    "rejection": lambda folders: BestOfN(n=3, pick="first"),
    "simplex_langevin": lambda folders: SimplexLangevin(steps=2),
}


def requests(
    lm: LanguageModel, constraints: Sequence[Constraint] = (), samples: int = 2, lengths: Sequence[int] = (4, 7)
) -> list[Request]:
    prompts = [Prompt.of(text, lm, id=str(number)) for number, text in enumerate(PROMPTS)]
    return [
        Request(item, lengths[sample % len(lengths)], constraints, sample)
        for item in prompts
        for sample in range(samples)
    ]


def by_place(generations: Sequence[Generation]) -> dict[tuple[str, int], Generation]:
    return {(item.prompt_id, item.sample): item for item in generations}


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_same_records_as_the_sampler_whatever_the_batch(
    name: str, small: LanguageModel, checkpoints: Folders
) -> None:
    method = SAMPLERS[name](checkpoints)
    constraints = [prompt("This is amazing", "This is terrible"), exclude("dog")]
    wanted = requests(small, constraints)
    found = by_place(list(method.decoder(small).run(wanted, seed=3)))
    assert len(found) == len(wanted)
    for request in wanted:
        item = found[request.prompt.id, request.sample]
        assert item.source == getattr(method, "name", None)
        assert item.prompt == request.prompt.text
        assert item.seed == 3
        assert item.tokens is not None
        assert len(item.tokens) == request.length
        assert small.table.allowed[item.tokens].all()
        (again,) = check(small, [request.prompt], [constraints], torch.tensor([item.tokens]))
        assert (item.text, item.satisfied, item.verified) == (again.text, again.satisfied, again.verified)
        assert item.nll == pytest.approx(again.nll, abs=1e-3)
        assert [item.values[c.name]["value"] for c in constraints] == pytest.approx(again.values, abs=1e-3)
        assert all(item.values[c.name]["threshold"] == c.threshold for c in constraints)
    reverse = by_place(list(method.sharing(1).decoder(small).run(reversed(wanted), seed=3)))
    assert {place: item.tokens for place, item in reverse.items()} == {p: item.tokens for p, item in found.items()}
    other = by_place(list(method.decoder(small).run(wanted, seed=4)))
    assert any(other[place].tokens != found[place].tokens for place in found)


def test_requests_are_taken_as_there_is_room(small: LanguageModel) -> None:
    taken = 0

    def source() -> object:
        nonlocal taken
        for request in requests(small):
            taken += 1
            yield request

    made = Nucleus(batch_size=2).decoder(small).run(source())  # type: ignore[arg-type]
    next(made)
    assert taken == 2


def test_draws_follow_the_distribution() -> None:
    scores = torch.tensor([[0.1, 0.0, 0.6, 0.3]]).log().expand(20_000, -1)
    drawn = Draw(torch.rand(20_000, 1, generator=stream(0, "test")))(torch.empty(0), scores).argmax(dim=1)
    assert torch.allclose(drawn.bincount(minlength=4) / 20_000, torch.tensor([0.1, 0.0, 0.6, 0.3]), atol=0.02)
    ends = Draw(torch.tensor([[0.0], [1.0]]))(torch.empty(0), torch.tensor([[0.0, 0.0, 0.4, 0.6]]).log().expand(2, -1))
    assert set(ends.argmax(dim=1).tolist()) == {2, 3}, "what has no probability is never drawn"


def test_plain_samples_are_those_of_the_language_model(lm: LanguageModel) -> None:
    """Shares of the first token, against the nucleus of the model's own distribution."""
    start = Prompt.of("The dog", lm)
    made = Nucleus(nucleus=0.8, batch_size=500).decoder(lm).run(Request(start, 1, (), n) for n in range(2000))
    counts = torch.bincount(torch.tensor([item.tokens[0] for item in made if item.tokens]), minlength=len(lm.table))
    p: Tensor = (
        lm.model(input_ids=torch.tensor([start.tokens])).logits[0, -1].masked_fill(~lm.table.allowed, -torch.inf)
    )
    p = p.softmax(0)
    order = p.argsort(descending=True)
    head = order[: int((p[order].cumsum(0) < 0.8).sum()) + 1]
    expected = torch.zeros_like(p)
    expected[head] = p[head] / p[head].sum()
    assert counts[expected == 0].sum() == 0
    assert torch.allclose(counts / 2000, expected, atol=0.04)


def test_more_samples_satisfy_more(small: LanguageModel) -> None:
    hard = exclude(*"aeio")
    shares = {}
    for n in (1, 20):
        made = list(BestOfN(n).decoder(small).run(requests(small, [hard], samples=6)))
        shares[n] = sum(bool(item.verified) for item in made) / len(made)
    assert shares[20] > shares[1]


def test_the_best_of_n_is_the_likeliest_that_holds_and_the_first_is_not(small: LanguageModel) -> None:
    wanted = requests(small, [exclude("e")], samples=4)
    best, first = (by_place(list(BestOfN(20, pick).decoder(small).run(wanted))) for pick in ("best", "first"))
    both = [place for place in best if best[place].verified and first[place].verified]
    assert both
    assert all((best[place].nll or 0) <= (first[place].nll or 0) + 1e-3 for place in both)
    assert any((best[place].nll or 0) < (first[place].nll or 0) - 1e-3 for place in both)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (lambda f: DAPT(f["gedi"]), "is not a language model of one class"),
        (lambda f: DExperts(f["good"], f["future"]), "is not a language model of one class"),
        (lambda f: GeDi(f["future"], "positive"), "is not a generative classifier"),
        (lambda f: FUDGE(f["gedi"], "positive"), "is not a future discriminator"),
        (lambda f: GeDi(f["gedi"], "positiv"), "no label of .* named 'positiv'; did you mean 'positive'"),
        (lambda f: FUDGE(f["future"], "positiv"), "no label of .* named 'positiv'; did you mean 'positive'"),
        (lambda f: GeDi("/no/such/folder", "positive"), "no attribute model named"),
        (lambda f: Nucleus(nucleus=0.0), "The nucleus is a probability above 0"),
        (lambda f: Nucleus(batch_size=0), "batch_size must be at least 1"),
        (lambda f: BestOfN(0), "n must be at least 1"),
    ],
)
def test_mistakes(
    method: Callable[[Folders], Method], message: str, small: LanguageModel, checkpoints: Folders
) -> None:
    with pytest.raises(MucolaError, match=message):
        method(checkpoints).decoder(small)


def test_a_checkpoint_for_another_table_is_refused(
    small: LanguageModel, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = LanguageModel(make_model("llama", len(small.table), seed=9), small.tokenizer, "other")
    folder = save_adapter(tmp_path_factory.mktemp("other"), other, "class_lm", 0)
    with pytest.raises(MucolaError, match="trained on the embedding table"):
        DAPT(folder).decoder(small)


@pytest.mark.parametrize("name", ["dexperts", "gedi", "fudge"])
def test_half_precision(name: str, small: LanguageModel, tmp_path: Path) -> None:
    half = LanguageModel(make_model("llama", len(small.table)).bfloat16(), small.tokenizer, "half")
    kinds = {"good": "class_lm", "bad": "class_lm", "gedi": "generative", "future": "future"}
    folders = {part: save_adapter(tmp_path / part, half, kind, 0) for part, kind in kinds.items()}
    (found,) = SAMPLERS[name](folders).decoder(half).run([Request(Prompt.of("The dog", half), 4)])
    assert len(found.tokens or ()) == 4


def test_a_length_that_cannot_be(small: LanguageModel) -> None:
    with pytest.raises(MucolaError, match="at least 1 token"):
        list(Nucleus().decoder(small).run([Request(Prompt.of("A", small), 0)]))
