import pytest
import torch

from mucola import embeddings
from mucola.embeddings import EmbeddingTable, fingerprint


def make_table(rows: int = 50, dim: int = 8, banned: tuple[int, ...] = ()) -> EmbeddingTable:
    weight = torch.randn(rows, dim, generator=torch.Generator().manual_seed(0))
    allowed = torch.ones(rows, dtype=torch.bool)
    allowed[list(banned)] = False
    return EmbeddingTable(weight, allowed)


def brute_force(table: EmbeddingTable, points: torch.Tensor) -> torch.Tensor:
    distances = (points[..., None, :] - table.weight).square().sum(-1)
    return distances.masked_fill(~table.allowed, torch.inf).argmin(-1)


@pytest.mark.parametrize("cached", [1, 300, 2**28])
def test_nearest_is_the_nearest_allowed_row(monkeypatch: pytest.MonkeyPatch, cached: int) -> None:
    monkeypatch.setattr(embeddings, "CACHED_BYTES", cached)
    table = make_table(banned=(3, 7))
    points = torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(1))
    assert torch.equal(table.nearest(points), brute_force(table, points))


@pytest.mark.parametrize("cached", [1, 2**28])
def test_nearest_respects_what_a_row_may_not_use(monkeypatch: pytest.MonkeyPatch, cached: int) -> None:
    monkeypatch.setattr(embeddings, "CACHED_BYTES", cached)
    table = make_table()
    points = table.rows(torch.tensor([[4, 9], [4, 9]]))
    tokens = table.nearest(points, [None, torch.tensor([4])])
    assert tokens[0].tolist() == [4, 9]
    assert tokens[1, 0] != 4
    assert tokens[1, 1] == 9


@pytest.mark.parametrize("cached", [1, 2**28])
def test_ties_go_to_the_lowest_id(monkeypatch: pytest.MonkeyPatch, cached: int) -> None:
    monkeypatch.setattr(embeddings, "CACHED_BYTES", cached)
    weight = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    table = EmbeddingTable(weight, torch.ones(3, dtype=torch.bool))
    assert table.nearest(torch.tensor([[[1.0, 0.0]]])).item() == 0


def test_fingerprint_tells_tables_apart_and_ignores_precision() -> None:
    weight = make_table().weight
    changed = weight.clone()
    changed[10, 3] += 0.5
    assert fingerprint(weight) == fingerprint(weight.bfloat16()) != fingerprint(changed)


def test_soft_neighbourhood_is_the_softmax_over_squared_distances() -> None:
    table = make_table()
    tokens = torch.tensor([[3, 8], [3, 20]])
    log_normaliser, mean = table.soft_neighbourhood(tokens)
    scores = -(table.rows(tokens)[..., None, :] - table.weight).square().sum(-1)
    torch.testing.assert_close(log_normaliser, scores.logsumexp(-1), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(mean, scores.softmax(-1) @ table.weight, atol=1e-4, rtol=1e-4)


def test_the_way_out_leads_to_the_neighbours() -> None:
    table = make_table()
    token = torch.tensor([5])
    others = (table.weight - table.weight[5]).norm(dim=1).argsort()[1:9]
    to_neighbours = table.weight[others].mean(dim=0) - table.weight[5]
    assert (table.way_out(token)[0] @ to_neighbours).item() == pytest.approx(-1.0, abs=1e-4)


def test_unwritable_tokens_are_never_allowed(lm) -> None:  # type: ignore[no-untyped-def]
    allowed = lm.table.allowed
    assert not allowed[lm.tokenizer.eos_token_id]
    assert allowed[lm.encode(" the")[0]]
    for token in (~allowed).nonzero().squeeze(1).tolist():
        text = lm.tokenizer.decode([token])
        assert lm.encode(text) != (token,) or not text.isprintable() or token == lm.tokenizer.eos_token_id


def test_markers_without_a_role_are_special_too() -> None:
    """Of SmolLM2's seventeen special tokens the tokenizer names three when asked for all."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import AddedToken, PreTrainedTokenizerFast

    inner = Tokenizer(WordLevel({"lake": 0, "<end>": 1, "<filename>": 2, ":-)": 3, "?": 4}, unk_token="?"))
    inner.add_special_tokens([AddedToken("<filename>", special=True)])
    inner.add_tokens([AddedToken(":-)")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>")
    assert 2 not in tokenizer.all_special_ids
    assert embeddings.writable_tokens(tokenizer, 5).tolist() == [True, False, False, True, True]
