from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mucola import langevin
from mucola.constraints import Constraint, keyword, prompt
from mucola.errors import MucolaError
from mucola.lagrangian import Ascent, ascend, coefficients
from mucola.langevin import Batch, Chain, Dynamics, State
from mucola.language_model import LanguageModel
from mucola.prompts import Prompt, Sequences
from mucola.randomness import stream
from mucola.schedules import Noise, StepSize
from mucola.selection import Best, consider, converged

from .conftest import random_tokens

DYNAMICS = Dynamics(StepSize(1.0, 1.25), Noise(0.5, 0.01, 10), Ascent())


def make_batch(lm: LanguageModel, rows: int, constraints: tuple[Constraint, ...] = ()) -> Batch:
    for constraint in constraints:
        constraint.prepare(lm)
    texts = ("The book", "", "The dog is")
    chains = [Chain(Prompt.of(texts[row % 3], lm), constraints, stream(0, row)) for row in range(rows)]
    return Batch(lm, chains)


# --- schedules and multipliers -----------------------------------------------------------------------


def test_noise_falls_geometrically_and_stays() -> None:
    noise = Noise(5.0, 0.05, 100)
    found = noise.at(torch.tensor([0, 50, 100, 400]))
    torch.testing.assert_close(found, torch.tensor([5.0, 0.5, 0.05, 0.05]))
    assert (Noise(0, 0, 1).at(torch.tensor([0, 3])) == 0).all()


def test_step_size_grows_while_settled() -> None:
    size, never = StepSize(1.0, 2.0, 40), torch.zeros(4, dtype=torch.long)
    assert size.at(torch.tensor([0, 10, 40, 99]), never).tolist() == [1.0, 1.25, 2.0, 2.0]


def test_step_size_shrinks_with_every_return() -> None:
    size, settled = StepSize(1.0, 2.0, 40, shrink=0.5), torch.zeros(3, dtype=torch.long)
    assert size.at(settled, torch.tensor([0, 1, 2])).tolist() == [1.0, 0.5, 0.25]


@pytest.mark.parametrize("wrong", [lambda: Noise(1.0, 0.0, 10), lambda: StepSize(2.0, 1.0), lambda: Ascent(rate=0)])
def test_impossible_schedules_are_refused(wrong) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(MucolaError):
        wrong()


def test_multipliers_step_by_step() -> None:
    ascent = Ascent(rate=1.0, period=20)
    eps = torch.tensor([[0.5]])

    def after(multiplier: float, value: float, step: int, still: int) -> float:
        held = torch.tensor([[value <= 0.5]])
        numbers = (torch.tensor([[multiplier]]), torch.tensor([[value]]), eps, held)
        return ascend(*numbers, torch.tensor([step]), torch.tensor([still]), ascent).item()

    assert after(1.0, 2.5, step=20, still=0) == pytest.approx(3.0), "rises by alpha (f - eps) every 20 steps"
    assert after(1.0, 2.5, step=21, still=0) == 1.0, "and not in between"
    assert after(1.0, 2.5, step=21, still=1) == pytest.approx(3.0), "but at every step while violated and still"
    assert after(1.0, 0.2, step=21, still=3) == 1.0, "a constraint that holds waits for its period"
    assert after(1.0, 0.2, step=40, still=3) == pytest.approx(0.7), "and then falls"
    assert after(0.1, 0.2, step=40, still=0) == 0.0, "never below 0"


def test_damping_pushes_at_once_and_never_backwards() -> None:
    values, eps = torch.tensor([[3.0, 0.0]]), torch.tensor([[1.0, 1.0]])
    found = coefficients(torch.zeros(1, 2), values, eps, damping=0.1)
    torch.testing.assert_close(found, torch.tensor([[0.2, 0.0]]))
    assert coefficients(torch.full((1, 2), 5.0), values, eps, 0.1)[0, 1] == pytest.approx(4.9), "kept while it holds"


# --- kernel ------------------------------------------------------------------------------------------


class Still(Constraint):
    """Holds everywhere, with no gradient."""

    name, threshold = "still", 1.0

    def value(self, sequences: Sequences) -> Tensor:
        return 0.0 * sequences.embeddings.sum((1, 2))


def test_the_step_is_gradient_plus_noise_of_std_sqrt_2_eta_beta(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = make_batch(lm, 64)
    state = langevin.init(batch, random_tokens(lm, 64, 6), DYNAMICS)
    seen = {}
    plain = lm.table.nearest_and_margin

    def spy(target: Tensor, *rest: object):  # type: ignore[no-untyped-def]
        seen["target"] = target
        return plain(target, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(lm.table, "nearest_and_margin", spy)
    langevin.step(batch, state, replace(DYNAMICS, step_size=StepSize(0.7, 0.7), noise=Noise(0.3, 0.3, 1)))
    noise = seen["target"] - (lm.table.rows(state.tokens) - 0.7 * state.gradients[:, 0])
    assert noise.std().item() == pytest.approx((2 * 0.7 * 0.3) ** 0.5, rel=0.02)
    assert noise.mean().item() == pytest.approx(0.0, abs=0.02)


def test_gradients_of_all_terms_are_combined_with_their_coefficients(lm: LanguageModel) -> None:
    constraint = prompt("This is amazing", "This is terrible") > 1 - 1e-12  # far from satisfied
    batch = make_batch(lm, 3, (constraint,))
    tokens = random_tokens(lm, 3, 5)
    state = langevin.init(batch, tokens, DYNAMICS)._replace(multipliers=torch.full((3, 1), 2.0))
    weight = 2.0 - 0.1 * (constraint.threshold - state.values)
    embeddings = lm.table.rows(tokens).requires_grad_(True)
    sequences = replace(batch.sequences(tokens), embeddings=embeddings)
    energy = lm.nll(embeddings, tokens, sequences.prefixes()) + (weight[:, 0] * constraint.value(sequences))
    (expected,) = torch.autograd.grad(energy.sum(), embeddings)
    found = state.gradients[:, 0] + weight[..., None] * state.gradients[:, 1]
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


def run(
    batch: Batch, tokens: Tensor, steps: int, everything: bool, dynamics: Dynamics = DYNAMICS
) -> tuple[list[Tensor], int]:
    state, visited, evaluated = langevin.init(batch, tokens, dynamics), [], 0
    for _ in range(steps):
        state, info = langevin.step(batch, state, dynamics, everything)
        visited.append(state.tokens)
        evaluated += int(info.evaluated.sum())
    return visited, evaluated


def test_evaluating_only_what_moved_changes_nothing(lm: LanguageModel) -> None:
    constraints = (keyword("dog"), prompt("This is amazing", "This is terrible"))
    slow = replace(DYNAMICS, step_size=StepSize(0.02, 0.03), noise=Noise(0.5, 0.001, 5))
    tokens = random_tokens(lm, 6, 6)
    lazy, few = run(make_batch(lm, 6, constraints), tokens, 40, everything=False, dynamics=slow)
    full, all_ = run(make_batch(lm, 6, constraints), tokens, 40, everything=True, dynamics=slow)
    assert all(torch.equal(a, b) for a, b in zip(lazy, full, strict=True))
    assert few < all_ == 6 * 40


def test_a_chain_that_goes_straight_back_is_not_evaluated_again(lm: LanguageModel) -> None:
    tokens = random_tokens(lm, 8, 4)
    lazy, few = run(make_batch(lm, 8), tokens, 40, everything=False)
    full, _ = run(make_batch(lm, 8), tokens, 40, everything=True)
    assert all(torch.equal(a, b) for a, b in zip(lazy, full, strict=True))
    moves = sum(int((a != b).any(dim=1).sum()) for a, b in zip([tokens, *lazy], lazy, strict=False))
    assert 0 < few < moves


def test_chains_in_a_batch_are_the_chains_one_by_one(lm: LanguageModel) -> None:
    tokens = random_tokens(lm, 4, 6)
    together, _ = run(make_batch(lm, 4, (keyword("dog"),)), tokens, 25, everything=False)
    for row in range(4):
        whole = make_batch(lm, 4, (keyword("dog"),))
        alone, _ = run(Batch(lm, [whole.chains[row]]), tokens[row : row + 1], 25, everything=False)
        assert [step[row].tolist() for step in together] == [step[0].tolist() for step in alone]


def test_no_more_tokens_move_than_allowed(lm: LanguageModel) -> None:
    tokens = random_tokens(lm, 5, 8)
    visited, _ = run(make_batch(lm, 5), tokens, 10, everything=False, dynamics=replace(DYNAMICS, moves=2))
    changes = [(a != b).sum(dim=1) for a, b in zip([tokens, *visited], visited, strict=False)]
    assert max(int(change.max()) for change in changes) == 2


def test_satisfied_constraints_without_weight_cost_no_gradient(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = []
    plain = Still.evaluate

    def spy(self, sequences, mask=None):  # type: ignore[no-untyped-def]
        wanted.append(bool(mask.any()))
        return plain(self, sequences, mask)

    monkeypatch.setattr(Still, "evaluate", spy)
    run(make_batch(lm, 2, (Still(),)), random_tokens(lm, 2, 5), 5, everything=True)
    assert wanted[0] is True
    assert not any(wanted[1:])


def test_no_chain_steps_on_a_banned_token(lm: LanguageModel) -> None:
    constraint = Still()
    allowed = lm.table.allowed.nonzero().squeeze(1)
    constraint.banned = allowed[: len(allowed) // 2]
    visited, _ = run(make_batch(lm, 3, (constraint,)), random_tokens(lm, 3, 5), 5, everything=False)
    assert not torch.isin(visited[-1], constraint.banned).any()


def test_going_straight_back_is_counted(lm: LanguageModel) -> None:
    batch = make_batch(lm, 8)
    state = langevin.init(batch, random_tokens(lm, 8, 4), DYNAMICS)
    visited = [state.tokens]
    for _ in range(40):
        state, _ = langevin.step(batch, state, DYNAMICS)
        visited.append(state.tokens)
    expected = []
    for row in range(8):
        path = [step[row].tolist() for step in visited]
        changes = [now for before, now in zip([None, *path], path, strict=False) if now != before]
        expected.append(sum(now == later for now, later in zip(changes, changes[2:], strict=False)))
    assert state.returns.tolist() == expected
    assert sum(expected) > 0


# --- selection ---------------------------------------------------------------------------------------


def a_state(tokens: list[list[int]], nll: list[float], holds: list[bool], still: list[int]) -> State:
    rows, length = len(tokens), len(tokens[0])
    terms = (torch.tensor(nll), torch.zeros(rows, 1), torch.tensor(holds)[:, None], torch.zeros(rows, 2, length, 3))
    here = torch.tensor(tokens)
    none = torch.zeros(rows, dtype=torch.long)
    return State(here, *terms, torch.zeros(rows, 1), here, *terms, none, torch.tensor(still), none)


def test_the_likeliest_satisfying_sequence_that_stood_still_is_kept() -> None:
    best = Best.none(torch.tensor([[0, 0]]))
    visits = [
        ([1, 1], 5.0, True, 5),
        ([2, 2], 1.0, False, 9),
        ([3, 3], 2.0, True, 4),
        ([4, 4], 4.0, True, 6),
        ([5, 5], 4.5, True, 9),
    ]
    for tokens, nll, holds, still in visits:
        best = consider(best, a_state([tokens], [nll], [holds], [still]))
    assert best.tokens.tolist() == [[4, 4]]
    assert best.found.tolist() == [True]


def test_without_any_that_stood_still_the_likeliest_satisfying_sequence_is_kept() -> None:
    best = Best.none(torch.tensor([[0]]))
    for token, nll, holds, still in ((1, 3.0, True, 0), (2, 2.0, True, 4), (3, 1.0, False, 0), (4, 2.5, True, 1)):
        best = consider(best, a_state([[token]], [nll], [holds], [still]))
    assert best.tokens.tolist() == [[2]]
    assert best.settled.tolist() == [False]
    best = consider(best, a_state([[5]], [9.0], [True], [5]))
    assert best.tokens.tolist() == [[5]]
    assert best.settled.tolist() == [True]


def test_a_chain_that_found_something_is_over_when_nothing_better_comes() -> None:
    state = a_state([[1]] * 5, [1.0] * 5, [False] * 5, [0] * 5)._replace(step=torch.full((5,), 200))
    nll, found_at = torch.tensor([2.0, 2.0, 2.0, 2.0, torch.inf]), torch.tensor([160, 161, 80, 81, 0])
    best = Best(state.tokens, nll, found_at, torch.tensor([True, True, False, False, False]))
    assert converged(best, state, patience=40).tolist() == [True, False, True, False, False]


def test_the_step_of_the_best_is_kept() -> None:
    best = Best.none(torch.tensor([[0]]))
    for step, nll in ((7, 3.0), (8, 4.0), (9, 2.0), (10, 2.0)):
        best = consider(best, a_state([[1]], [nll], [True], [5])._replace(step=torch.tensor([step])))
    assert best.step.tolist() == [9]
