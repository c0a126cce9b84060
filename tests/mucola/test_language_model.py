import pytest
import torch
from torch.nn.functional import cross_entropy

from mucola import embeddings
from mucola.errors import MucolaError
from mucola.language_model import LanguageModel, nucleus_draw

from .conftest import make_model, random_tokens

PROMPTS = ("The book", "", "The dog is at the beach and")


def own_loss(lm: LanguageModel, prompt: str, tokens: torch.Tensor) -> torch.Tensor:
    """Summed NLL of the continuation by the model's own forward pass."""
    before = lm.encode(prompt)
    ids = torch.tensor([[*before, *tokens.tolist()]])
    logits = lm.model(input_ids=ids).logits[0, len(before) - 1 : -1]
    return cross_entropy(logits, tokens, reduction="sum")


def energies(lm: LanguageModel, tokens: torch.Tensor, embeddings: torch.Tensor | None = None) -> torch.Tensor:
    prefixes = [lm.prefix(lm.encode(PROMPTS[row % len(PROMPTS)])) for row in range(len(tokens))]
    return lm.nll(lm.table.rows(tokens) if embeddings is None else embeddings, tokens, prefixes)


def test_energy_at_rows_is_the_models_own_nll_for_prompts_of_mixed_lengths(any_lm: LanguageModel) -> None:
    tokens = random_tokens(any_lm, 5, 7)
    found = energies(any_lm, tokens)
    for row in range(5):
        expected = own_loss(any_lm, PROMPTS[row % 3], tokens[row])
        torch.testing.assert_close(found[row], expected, atol=1e-4, rtol=1e-5)


def test_gradient_agrees_with_finite_differences(any_lm: LanguageModel) -> None:
    tokens = random_tokens(any_lm, 3, 5)
    embeddings = any_lm.table.rows(tokens).requires_grad_(True)
    (gradient,) = torch.autograd.grad(energies(any_lm, tokens, embeddings).sum(), embeddings)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        direction = torch.randn(embeddings.shape, generator=generator)
        step = 1e-3 * direction / direction.norm()
        with torch.no_grad():
            up = energies(any_lm, tokens, embeddings + step).double()
            down = energies(any_lm, tokens, embeddings - step).double()
        slope = (up - down).sum() / 2e-3
        expected = (gradient * direction / direction.norm()).double().sum()
        assert slope.item() == pytest.approx(expected.item(), abs=2e-2 * gradient.norm().item())


def test_energy_and_gradient_do_not_depend_on_how_the_vocabulary_is_cut(
    any_lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, found = random_tokens(any_lm, 3, 5), []
    for cached in (2**28, 1000, 1):
        monkeypatch.setattr(embeddings, "CACHED_BYTES", cached)
        points = any_lm.table.rows(tokens).requires_grad_(True)
        energy = energies(any_lm, tokens, points)
        found.append((energy.detach(), *torch.autograd.grad(energy.sum(), points)))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], atol=1e-4, rtol=1e-4)


def test_last_position_is_pulled_by_one_minus_p_times_its_state(lm: LanguageModel) -> None:
    tokens = random_tokens(lm, 2, 4)
    embeddings = lm.table.rows(tokens).requires_grad_(True)
    prefixes = [lm.prefix(lm.encode("The book"))] * 2
    (gradient,) = torch.autograd.grad(lm.nll(embeddings, tokens, prefixes).sum(), embeddings)
    before = torch.tensor([[*lm.encode("The book"), *row[:-1]] for row in tokens.tolist()])
    output = lm.model(input_ids=before, output_hidden_states=True)
    state, logits = output.hidden_states[-1][:, -1], output.logits[:, -1]
    p = logits.softmax(-1).gather(1, tokens[:, -1:])
    torch.testing.assert_close(gradient[:, -1], -(1 - p) * state, atol=1e-4, rtol=1e-3)


def test_a_remembered_prompt_gives_the_gradient_of_the_whole_text(any_lm: LanguageModel) -> None:
    tokens = random_tokens(any_lm, 1, 5)
    prompt = any_lm.encode("The dog is at the beach and")
    remembered = any_lm.table.rows(tokens).requires_grad_(True)
    nll = any_lm.nll(remembered, tokens, [any_lm.prefix(prompt)])
    (found,) = torch.autograd.grad(nll.sum(), remembered)
    # The same continuation after a one-token prompt, with the rest of the prompt as part of the text.
    whole = torch.tensor([[*prompt[1:], *tokens[0].tolist()]])
    together = any_lm.table.rows(whole).requires_grad_(True)
    parts = any_lm.token_nll(together, whole, [any_lm.prefix(prompt[:1])])
    (expected,) = torch.autograd.grad(parts[:, len(prompt) - 1 :].sum(), together)
    torch.testing.assert_close(found, expected[:, len(prompt) - 1 :], atol=1e-4, rtol=1e-3)


def test_energy_of_a_point_off_the_table_moves_numerator_and_denominator(lm: LanguageModel) -> None:
    tokens = random_tokens(lm, 1, 1)
    point = lm.table.rows(tokens) + 0.1
    prefix = lm.prefix(lm.encode("The book"))
    logits = lm.table.weight @ prefix.hidden
    logits[tokens[0, 0]] = point[0, 0] @ prefix.hidden
    expected = logits.logsumexp(0) - logits[tokens[0, 0]]
    torch.testing.assert_close(lm.nll(point, tokens, [prefix])[0], expected, atol=1e-4, rtol=1e-4)


def test_greedy_continuation_is_that_of_generate(any_lm: LanguageModel) -> None:
    prefixes = [any_lm.prefix(any_lm.encode(prompt)) for prompt in PROMPTS]
    found = any_lm.continuations(prefixes, torch.rand(3, 6), nucleus=0.0)
    known = any_lm.nll(any_lm.table.rows(found.tokens), found.tokens, prefixes)
    assert torch.allclose(found.nll, known, rtol=1e-4)
    banned = (~any_lm.table.allowed).nonzero().squeeze(1).tolist()
    for row, prompt in enumerate(PROMPTS):
        ids = torch.tensor([any_lm.encode(prompt)])
        expected = any_lm.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False, suppress_tokens=banned
        )
        assert found.tokens[row].tolist() == expected[0, ids.shape[1] :].tolist()


def test_nucleus_samples_follow_the_truncated_distribution(lm: LanguageModel) -> None:
    prefix = lm.prefix(lm.encode("The book"))
    count = 20_000
    uniforms = torch.rand(count, 1, generator=torch.Generator().manual_seed(0))
    tokens = lm.continuations([prefix] * count, uniforms, 0.5).tokens.squeeze(1)
    drawn = torch.bincount(tokens, minlength=len(lm.table)) / count
    logits = (lm.table.weight @ prefix.hidden).masked_fill(~lm.table.allowed, -torch.inf)
    p, order = logits.softmax(0).sort(descending=True)
    p[int((p.cumsum(0) < 0.5).sum()) + 1 :] = 0
    expected = torch.zeros_like(p).scatter(0, order, p / p.sum())
    assert (drawn - expected).abs().max() < 4 * (0.25 / count) ** 0.5


def test_a_nucleus_that_reaches_beyond_the_sorted_head(lm: LanguageModel) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, uniforms = 2 * torch.randn(200, 300, generator=generator), torch.rand(200, generator=generator)
    whole = nucleus_draw(logits, uniforms, 0.9, head=300)
    assert nucleus_draw(logits, uniforms, 0.9, head=20).tolist() == whole.tolist()
    assert (logits.argsort(dim=1, descending=True)[:, :20] != whole[:, None]).all(dim=1).any()


def test_half_precision_models_have_full_precision_energies(tokenizer) -> None:  # type: ignore[no-untyped-def]
    lm = LanguageModel(make_model("llama", len(tokenizer)).bfloat16(), tokenizer, "half")
    tokens = random_tokens(lm, 2, 5)
    embeddings = lm.table.rows(tokens).requires_grad_(True)
    nll = energies(lm, tokens, embeddings)
    (gradient,) = torch.autograd.grad(nll.sum(), embeddings)
    assert nll.dtype == gradient.dtype == lm.table.weight.dtype == torch.float32
    assert nll[0].item() == pytest.approx(own_loss(lm, PROMPTS[0], tokens[0]).item(), rel=0.03)


def test_a_model_with_other_logits_is_refused(tokenizer) -> None:  # type: ignore[no-untyped-def]
    model = make_model("llama", len(tokenizer))
    plain = model.forward

    def scaled(*args, **options):  # type: ignore[no-untyped-def]
        output = plain(*args, **options)
        output.logits = 30 * torch.tanh(output.logits)
        return output

    model.forward = scaled
    with pytest.raises(MucolaError, match="does not reproduce"):
        LanguageModel(model, tokenizer, "scaled")
