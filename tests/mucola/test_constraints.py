from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mucola.constraints import Constraint, check_constraint, exclude, keyword, no_repetition, parse, parse_all, prompt
from mucola.errors import MucolaError
from mucola.language_model import LanguageModel
from mucola.prompts import Prompt, Sequences


def on(lm: LanguageModel, constraint: Constraint, text: str, before: str = "The dog") -> tuple[float, bool, Tensor]:
    """Value, whether it holds, and the gradient of one continuation."""
    constraint.prepare(lm)
    tokens = torch.tensor([lm.encode(text)])
    found = constraint.evaluate(Sequences.of(lm, [Prompt.of(before, lm)], tokens), torch.tensor([True]))
    return found.values.item(), bool(found.holds.item()), found.gradients[0]


# --- keywords ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" is at the beach.", True),
        (" is at the Beach", True),
        (" likes beaches and", False),
        (" is at the sea and", False),
        (" on a surfboard", False),
    ],
)
def test_a_keyword_holds_when_the_text_has_the_whole_word(lm: LanguageModel, text: str, expected: bool) -> None:
    constraint = keyword("beach")
    value, holds, _ = on(lm, constraint, text)
    assert holds is expected
    assert (value <= constraint.threshold) is expected


def test_the_prompt_never_satisfies_a_keyword(lm: LanguageModel) -> None:
    assert not on(lm, keyword("dog"), " is at the beach", before="The dog")[1]
    assert not on(lm, keyword("side"), "side is", before="The sea")[1], "it only goes on with the prompt's last word"


def test_any_form_of_a_keyword_will_do(lm: LanguageModel) -> None:
    assert on(lm, keyword("sea", "beach"), " is at the beach")[1]
    assert on(lm, keyword("long road"), " on the long road home")[1]
    assert not on(lm, keyword("long road"), " on the road so long")[1]


def test_a_keyword_pulls_one_place_towards_its_rows(lm: LanguageModel) -> None:
    constraint = keyword("beach")
    _, _, gradient = on(lm, constraint, " is on the table and the book")
    places = gradient.norm(dim=1).nonzero().squeeze(1).tolist()
    word = constraint.spellings[0]  # type: ignore[attr-defined]
    assert places == list(range(places[0], places[0] + len(word)))
    tokens = torch.tensor(lm.encode(" is on the table and the book"))
    towards = lm.table.rows(word) - lm.table.rows(tokens[places])
    assert ((-gradient[places] * towards).sum(dim=1) > 0).all()


def test_keyword_gradient_is_that_of_its_closeness(lm: LanguageModel) -> None:
    """The closed form against autograd on the definition, -log pi at the drawn place."""
    constraint = keyword("beach")
    tokens = torch.tensor(lm.encode(" is on the table and the book"))
    _, _, found = on(lm, constraint, " is on the table and the book")
    place = int(found.norm(dim=1).nonzero()[0])
    word = constraint.spellings[0]  # type: ignore[attr-defined]
    embeddings = lm.table.rows(tokens).requires_grad_(True)
    log_pi = (-(embeddings[:, None] - lm.table.weight).square().sum(-1)).log_softmax(-1)
    value = -sum(log_pi[place + u, token] for u, token in enumerate(word.tolist())) / len(word)
    (expected,) = torch.autograd.grad(value, embeddings)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)


def test_gumbel_noise_moves_the_place(lm: LanguageModel) -> None:
    constraint = keyword("dog")
    constraint.prepare(lm)
    tokens = torch.tensor([lm.encode(" is on the table and the book")])
    chosen = set()
    for seed in range(30):
        noise = 20 * torch.rand(1, tokens.shape[1], generator=torch.Generator().manual_seed(seed))
        sequences = Sequences.of(lm, [Prompt.of("The", lm)], tokens).select([0], noise)
        chosen.add(int(constraint.evaluate(sequences, torch.tensor([True])).gradients[0].norm(dim=1).nonzero()[0]))
    assert len(chosen) > 1


def test_keywords_of_many_chains_are_evaluated_as_if_alone(lm: LanguageModel) -> None:
    words = [keyword("beach"), keyword("dog"), keyword("sea", "painting"), keyword("long road")]
    texts = [" is at the beach", " is on the sea to", " was a surfboard"]
    rows, constraints = [], []
    for word in words:
        word.prepare(lm)
        for text in texts:
            rows.append(lm.encode(text + " and the dog was at home")[:8])
            constraints.append(word)
    tokens = torch.tensor(rows)
    sequences = Sequences.of(lm, [Prompt.of("The dog", lm)] * len(rows), tokens)
    wanted = torch.ones(len(rows), dtype=torch.bool)
    together = type(words[0]).evaluate_together(constraints, sequences, wanted)
    for row, constraint in enumerate(constraints):
        alone = constraint.evaluate(sequences.select([row]), wanted[:1])
        torch.testing.assert_close(together.values[row], alone.values[0])
        torch.testing.assert_close(together.gradients[row], alone.gradients[0])
        assert together.holds[row] == alone.holds[0]


def test_a_word_that_cannot_be_written_is_refused(lm: LanguageModel) -> None:
    with pytest.raises(MucolaError, match="cannot be written"):
        keyword("\u4f60\u597d").prepare(lm)
    with pytest.raises(MucolaError, match="at least one word"):
        keyword(" ")


# --- exclusion and repetition ------------------------------------------------------------------------


def test_excluded_words(lm: LanguageModel) -> None:
    constraint = exclude("war", "long road")
    assert on(lm, constraint, " was warm and long")[1]
    assert not on(lm, constraint, " saw the War")[1]
    value, holds, gradient = on(lm, constraint, " on the long road home")
    assert not holds
    assert value > constraint.threshold
    places = gradient.norm(dim=1).nonzero().squeeze(1).tolist()
    assert lm.tokenizer.decode([lm.encode(" on the long road home")[place] for place in places]).strip() == "long road"
    banned = {lm.tokenizer.decode([token]).strip() for token in constraint.banned.tolist()}  # type: ignore[union-attr]
    assert banned <= {"war", "War"}


def test_marks_are_excluded_wherever_they_stand(lm: LanguageModel) -> None:
    assert not on(lm, exclude("\n"), " is\nhere")[1]
    assert on(lm, exclude("\n"), " is here")[1]


def test_repetition_counts_repeated_sequences_of_tokens(lm: LanguageModel) -> None:
    once = " the dog is at the beach"
    constraint = no_repetition(2)
    length = len(lm.encode(once))
    value, holds, gradient = on(lm, constraint, once * 2)
    repeats = len(lm.encode(once * 2)) - length - 1
    assert value == pytest.approx(repeats, abs=1.01)
    assert not holds
    assert gradient[:length].norm() == pytest.approx(0.0, abs=1e-5), "the first time is not a repetition"
    assert gradient[length:].norm() > 0
    assert on(lm, no_repetition(3), " is at the sea and home")[1]


# --- what users write --------------------------------------------------------------------------------


class Brightness(Constraint):
    """A user's own constraint: the mean embedding points along a direction."""

    name, threshold = "brightness", 0.0

    def value(self, sequences: Sequences) -> Tensor:
        return -sequences.embeddings.mean(dim=1).sum(dim=1)


class Detached(Brightness):
    def value(self, sequences: Sequences) -> Tensor:
        half = sequences.embeddings.shape[1] // 2
        return -(sequences.embeddings[:, :half].sum((1, 2)) + sequences.embeddings[:, half:].detach().sum((1, 2)))


class Mixing(Brightness):
    def value(self, sequences: Sequences) -> Tensor:
        return super().value(sequences) + sequences.embeddings.mean()


class Misshapen(Brightness):
    def value(self, sequences: Sequences) -> Tensor:
        return sequences.embeddings.sum(dim=2)


def test_check_constraint_accepts_what_is_right_and_explains_what_is_not(lm: LanguageModel) -> None:
    for constraint in (Brightness(), no_repetition(2), prompt("This is amazing", "This is terrible")):
        check_constraint(constraint, lm)
    with pytest.raises(AssertionError, match="detach nothing"):
        check_constraint(Detached(), lm)
    with pytest.raises(AssertionError, match="other rows"):
        check_constraint(Mixing(), lm)
    with pytest.raises(MucolaError, match="one number a sequence"):
        check_constraint(Misshapen(), lm)


def test_prompt_constraint_is_the_difference_of_two_whole_texts(lm: LanguageModel) -> None:
    constraint = prompt("This is amazing", "This is terrible")
    value, _, _ = on(lm, constraint, " is at the beach", before="The dog")
    text = (*lm.encode("The dog"), *lm.encode(" is at the beach"))
    sides = [lm.score(text, lm.encode(words)) for words in ("This is amazing", "This is terrible")]
    assert value == pytest.approx((sides[0] - sides[1]) / len(text), abs=1e-4)
    probability = 1 / (1 + math.exp(sides[0] - sides[1]))
    for asked in (probability - 0.01, probability + 0.01):
        _, holds, _ = on(lm, constraint > asked, " is at the beach", before="The dog")
        assert holds == (probability > asked)


# --- notation ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('classifier("positive") > 0.9', "positive > 0.9"),
        ('classifier("toxic", prompt=False) < 0.01', "toxic < 0.01"),
        ('keyword("run", "ran")', 'keyword("run", "ran")'),
        ('exclude("\\n")', 'exclude("\\n")'),
        ("no_repetition()", "no_repetition(3)"),
        ('prompt("a", "b")', 'prompt("a", "b")'),
        ('prompt("a", "b") > 0.9', 'prompt("a", "b") > 0.9'),
        ('generative("folder", "positive")', 'generative("folder", "positive")'),
        ('contrast("a", "b")', 'contrast("a", "b")'),
    ],
)
def test_notation(text: str, name: str) -> None:
    assert [constraint.name for constraint in parse(text)] == [name]


def test_n_classes_are_n_minus_1_constraints() -> None:
    made = parse('most_likely("joy", "emotions", labels=["joy", "anger", "fear"])')
    assert [item.name for item in made] == [f'classifier("joy", "emotions") > {other}' for other in ("anger", "fear")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('keyward("x")', "did you mean 'keyword'"),
        ('keyword("x"', "never closed"),
        ('classifier("positive")', "lacks a threshold"),
        ('classifier("positive") > 2', "between 0 and 1"),
        ('classifier("joyful") > 0.5', "known labels are"),
        ('keyword("x") > 1', "Only a probability"),
        ("no_repetition(0)", "at least 1 token"),
        ('prompt("a")', "not complete"),
        ('prompt("a", "b") > 1', "between 0 and 1"),
        ('prompt("a", "b") < 0.1', "wanted side first"),
        ('open("/etc/passwd").read()', "not a constraint"),
        ("1 + 1", "not a constraint"),
    ],
)
def test_wrong_notation_is_explained(text: str, message: str) -> None:
    with pytest.raises(MucolaError, match=message):
        parse(text)


def test_a_keyword_that_is_excluded_is_a_contradiction() -> None:
    with pytest.raises(MucolaError, match="drop one"):
        parse_all(['keyword("long road")', 'exclude("road")'])
    assert len(parse_all(['keyword("long road", "path")', 'exclude("road")'])) == 2
