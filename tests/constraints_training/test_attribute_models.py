"""What the sampler relies on: the same answer for ids and embeddings, and no model on a foreign table."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from constraints_training.classifier import ClassifierTraining
from constraints_training.projection import shared_tokens, start_projection
from mucola import model_store
from mucola.attribute_models import EmbeddingClassifier, load_attribute_model, shipped
from mucola.embeddings import EmbeddingTable
from mucola.errors import MucolaError


@pytest.fixture
def classifier(tiny_lm: Path, any_encoder: Path, tmp_path: Path) -> tuple[EmbeddingClassifier, EmbeddingTable]:
    module = ClassifierTraining(str(tiny_lm), ["a", "b", "c"], str(any_encoder), pretrained=False)
    module.configure_model()
    module.export(tmp_path / "saved")
    table = EmbeddingTable(module.table, torch.ones(len(module.table), dtype=torch.bool))
    model = load_attribute_model(tmp_path / "saved", table)
    assert isinstance(model, EmbeddingClassifier)
    return model, table


def test_ids_and_embeddings_give_the_same_logits(classifier: tuple[EmbeddingClassifier, EmbeddingTable]) -> None:
    model, table = classifier
    tokens = torch.arange(len(table)).repeat(3)[:60].view(2, 30)  # every id, also those that mean padding to an encoder
    by_ids = model.classify_tokens(tokens, table.weight)
    by_embeddings = model(table.rows(tokens))
    assert by_ids.shape == (2, 3)
    assert torch.allclose(by_ids, by_embeddings, atol=1e-5)


def test_padding_changes_nothing(classifier: tuple[EmbeddingClassifier, EmbeddingTable]) -> None:
    model, table = classifier
    tokens = torch.tensor([[1, 5, 3, 1]])
    padded = torch.tensor([[1, 5, 3, 1, 0, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1, 0, 0, 0]])
    alone = model.classify_tokens(tokens, table.weight)
    assert torch.allclose(model.classify_tokens(padded, table.weight, mask), alone, atol=1e-5)


def test_the_order_of_tokens_matters(classifier: tuple[EmbeddingClassifier, EmbeddingTable]) -> None:
    model, table = classifier
    forwards, backwards = torch.tensor([[1, 5, 3, 7]]), torch.tensor([[7, 3, 5, 1]])
    assert not torch.allclose(
        model.classify_tokens(forwards, table.weight), model.classify_tokens(backwards, table.weight), atol=1e-4
    )


def test_gradients_reach_the_embeddings_and_nothing_else(
    classifier: tuple[EmbeddingClassifier, EmbeddingTable],
) -> None:
    model, table = classifier
    embeddings = table.rows(torch.tensor([[1, 5, 3]])).requires_grad_()
    model(embeddings)[0, 0].backward()
    assert embeddings.grad is not None
    assert (embeddings.grad.norm(dim=-1) > 0).all()
    assert all(weight.grad is None for weight in model.parameters())


def test_a_text_longer_than_the_encoder_reads_is_refused(
    classifier: tuple[EmbeddingClassifier, EmbeddingTable],
) -> None:
    model, table = classifier
    model.classify_tokens(torch.zeros(1, model.max_length, dtype=torch.long), table.weight)
    with pytest.raises(
        MucolaError, match=f"reads at most {model.max_length} tokens and was given {model.max_length + 1}"
    ):
        model.classify_tokens(torch.zeros(1, model.max_length + 1, dtype=torch.long), table.weight)


def test_another_table_is_refused(classifier: tuple[EmbeddingClassifier, EmbeddingTable], tmp_path: Path) -> None:
    _, table = classifier
    other = EmbeddingTable(table.weight + 1, table.allowed)
    with pytest.raises(MucolaError, match=f"fingerprint {table.fingerprint}.*this model's is {other.fingerprint}"):
        load_attribute_model(tmp_path / "saved", other)


def test_training_goes_on_from_a_saved_classifier(
    classifier: tuple[EmbeddingClassifier, EmbeddingTable], tiny_lm: Path, tmp_path: Path
) -> None:
    model, table = classifier
    tokens = torch.tensor([[1, 5, 3]])
    same = ClassifierTraining(str(tiny_lm), ["a", "b", "c"], start_from=str(tmp_path / "saved"))
    same.configure_model()
    assert all(weight.requires_grad for weight in same.network.parameters())
    assert torch.allclose(same.network.eval()(table.rows(tokens)), model(table.rows(tokens)))
    other = ClassifierTraining(str(tiny_lm), ["x", "y"], start_from=str(tmp_path / "saved"))
    other.configure_model()
    assert other.network(table.rows(tokens)).shape == (1, 2)
    assert torch.equal(other.network.projection.weight, model.projection.weight)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sentiment-sst", "There is no attribute model named 'sentiment-sst'; did you mean 'sentiment-"),
        ("/no/such/folder", "There is no attribute model named"),
        (".", "no config.json"),
    ],
)
def test_a_name_that_is_nothing(name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MucolaError, match=message):
        load_attribute_model(name)


def test_the_projection_starts_from_tokens_that_both_vocabularies_share(tiny_lm: Path, tiny_encoder: Path) -> None:
    """The vocabularies hold the same words under other numbers; a linear map between them is found again."""
    lm, lm_tokenizer = model_store.load_causal_lm(str(tiny_lm))
    from transformers import AutoTokenizer

    encoder_tokenizer = AutoTokenizer.from_pretrained(tiny_encoder)
    table = lm.get_input_embeddings().weight[:, :8].detach()
    ours, theirs = shared_tokens(lm_tokenizer, encoder_tokenizer, len(table))
    assert lm_tokenizer.convert_ids_to_tokens(ours.tolist()) == encoder_tokenizer.convert_ids_to_tokens(theirs.tolist())
    words = torch.zeros(len(encoder_tokenizer), 5)
    true = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    words[theirs] = table[ours] @ true.T + 2
    weight, bias = start_projection(lm_tokenizer, table, encoder_tokenizer, words)
    assert torch.allclose(weight, true, atol=1e-3)
    assert torch.allclose(bias, torch.full((5,), 2.0), atol=1e-3)


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "label", "has_it", "has_not"),
    [
        ("sentiment-sst2", "positive", "A wonderful, moving film.", "A dull and boring mess."),
        ("sentiment-yelp", "positive", "The food was great!", "The service was terrible."),
        ("toxicity", "toxic", "You are a stupid idiot.", "Thank you for your help."),
    ],
)
def test_shipped_classifiers_tell_obvious_texts_apart(name: str, label: str, has_it: str, has_not: str) -> None:
    assert name in shipped()
    lm, tokenizer = model_store.load_causal_lm("smollm2-135m")
    table = EmbeddingTable(lm.get_input_embeddings().weight, torch.ones(lm.config.vocab_size, dtype=torch.bool))
    model = load_attribute_model(name, table)
    assert isinstance(model, EmbeddingClassifier)

    def probability(text: str) -> float:
        tokens = tokenizer(text, return_tensors="pt").input_ids
        return model(table.rows(tokens)).softmax(-1)[0, model.labels.index(label)].item()

    assert probability(has_it) > 0.8
    assert probability(has_not) < 0.2
