"""Constraints that rest on other models: classifiers and adapted language models, small ones and a real one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import LoraConfig
from transformers import BertConfig, PreTrainedTokenizerFast

from mucola.attribute_models import (
    AdaptedLMConfig,
    EmbeddingClassifier,
    EmbeddingClassifierConfig,
    save_adapted_lm,
)
from mucola.constraints import check_constraint, classifier, contrast, generative, most_likely, prompt
from mucola.errors import MucolaError
from mucola.language_model import LanguageModel
from mucola.model_store import load_causal_lm
from mucola.prompts import Prompt, Sequences
from mucola.sampler import Sampler

from .conftest import make_model, random_tokens


def save_classifier(folder: Path, lm: LanguageModel, labels: list[str]) -> str:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    encoder = BertConfig(vocab_size=8, max_position_embeddings=64, pad_token_id=0, **shape).to_dict()  # type: ignore[arg-type]
    config = EmbeddingClassifierConfig(encoder, labels, lm.table.input_dim, lm.table.fingerprint, lm.name)
    model = EmbeddingClassifier(config)
    with torch.no_grad():
        model.head.weight.normal_(std=2.0)
    model.save_pretrained(folder)
    return str(folder)


def save_adapter(folder: Path, tokenizer: PreTrainedTokenizerFast, fingerprint: str, kind: str, seed: int) -> str:
    model = make_model("llama", len(tokenizer))
    model.add_adapter(LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False), "attribute")
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora" in name:
                parameter.normal_(std=0.3)
    labels = ["negative", "positive"] if kind == "generative" else ["positive"]
    words = ["bad", "good"] if kind == "generative" else []
    save_adapted_lm(folder, model, AdaptedLMConfig(kind, labels, "tiny", fingerprint, label_words=words))
    return str(folder)


@pytest.fixture
def plain_lm(tokenizer: PreTrainedTokenizerFast) -> LanguageModel:
    return LanguageModel(make_model("llama", len(tokenizer)), tokenizer, "tiny")


def test_classifier_constraints(lm: LanguageModel, tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "c", lm, ["joy", "anger", "fear"])
    for constraint in (
        classifier("joy", folder) > 0.9,
        classifier("joy", folder, prompt=False) < 0.1,
        *most_likely("joy", folder, ["joy", "anger", "fear"]),
    ):
        check_constraint(constraint, lm)


def test_the_prompt_is_read_or_not(lm: LanguageModel, tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "c", lm, ["yes", "no"])
    tokens = random_tokens(lm, 1, 5)
    found = {}
    for reads in (True, False):
        constraint = classifier("yes", folder, prompt=reads) > 0.5
        constraint.prepare(lm)
        for text in ("The book", "The dog is at the beach"):
            found[reads, text] = constraint.value(Sequences.of(lm, [Prompt.of(text, lm)], tokens)).item()
    assert found[True, "The book"] != pytest.approx(found[True, "The dog is at the beach"])
    assert found[False, "The book"] == pytest.approx(found[False, "The dog is at the beach"])


def test_pairwise_constraints_hold_exactly_where_the_label_wins(lm: LanguageModel, tmp_path: Path) -> None:
    labels = ["joy", "anger", "fear"]
    constraints = most_likely("anger", save_classifier(tmp_path / "c", lm, labels), labels)
    tokens = random_tokens(lm, 30, 5)
    sequences = Sequences.of(lm, [Prompt.of("", lm)] * 30, tokens)
    for constraint in constraints:
        constraint.prepare(lm)
    held = torch.stack([item.evaluate(sequences).holds for item in constraints]).all(dim=0)
    logits = constraints[0].model(lm.table.rows(tokens))  # type: ignore[attr-defined]
    assert torch.equal(held, logits.argmax(dim=1) == 1)
    assert held.any()
    assert not held.all()


def test_a_label_the_classifier_does_not_know(lm: LanguageModel, tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "c", lm, ["joy", "anger"])
    with pytest.raises(MucolaError, match="did you mean 'joy'"):
        (classifier("joyy", folder) > 0.5).prepare(lm)


def test_a_classifier_of_another_table_is_refused(lm: LanguageModel, plain_lm: LanguageModel, tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "c", lm, ["joy", "anger"])
    with pytest.raises(MucolaError, match="trained on the embedding table"):
        (classifier("joy", folder) > 0.5).prepare(plain_lm)


def test_adapted_language_models(plain_lm: LanguageModel, tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    print_ = plain_lm.table.fingerprint
    before = plain_lm.score(plain_lm.encode(" is at the beach"), plain_lm.encode("The dog"))
    gedi = save_adapter(tmp_path / "gedi", tokenizer, print_, "generative", 1)
    good, bad = (save_adapter(tmp_path / str(n), tokenizer, print_, "class_lm", n) for n in (2, 3))
    for constraint in (generative(gedi, "positive"), contrast(good, bad)):
        check_constraint(constraint, plain_lm)
    one, other = generative(gedi, "positive"), generative(gedi, "negative")
    sequences = Sequences.of(plain_lm, [Prompt.of("The dog", plain_lm)] * 3, random_tokens(plain_lm, 3, 5))
    for constraint in (one, other):
        constraint.prepare(plain_lm)
    assert torch.allclose(one.value(sequences), -other.value(sequences), atol=1e-5)
    assert one.value(sequences).abs().min() > 1e-4, "the label word changes what the model expects"
    after = plain_lm.score(plain_lm.encode(" is at the beach"), plain_lm.encode("The dog"))
    plain_lm._prefixes.clear()
    assert after == pytest.approx(before), "the plain model is untouched by the adapters on it"
    with pytest.raises(MucolaError, match="class_lm"):
        contrast(gedi, bad).prepare(plain_lm)


def test_the_advice_of_a_pair_adds_up_to_its_value(
    plain_lm: LanguageModel, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    print_ = plain_lm.table.fingerprint
    gedi = save_adapter(tmp_path / "gedi", tokenizer, print_, "generative", 1)
    good, bad = (save_adapter(tmp_path / str(n), tokenizer, print_, "class_lm", n) for n in (2, 3))
    for constraint in (generative(gedi, "positive"), contrast(good, bad) > 0.9, prompt("a dog", "a beach")):
        constraint.prepare(plain_lm)
        for text in ("The dog", ""):
            given = Prompt.of(text, plain_lm)
            sequences = Sequences.of(plain_lm, [given] * 3, random_tokens(plain_lm, 3, 5))
            guide, odds = constraint.guide(sequences.prompts), torch.zeros(3)
            for tokens in sequences.tokens.T[:, :, None]:
                label, other = guide.label.logits(), guide.other.logits()  # type: ignore[attr-defined]
                assert torch.equal(guide.advice(), label - other)
                odds += (label.log_softmax(1) - other.log_softmax(1)).gather(1, tokens).squeeze(1)
                guide.read(tokens.squeeze(1))
            odds += constraint.other.prompt_nll(given) - constraint.label.prompt_nll(given)
            length = 5 + len(given.tokens) * bool(text)
            assert torch.allclose(constraint.value(sequences), (constraint.log_odds - odds) / length, atol=1e-4)


@pytest.mark.real
def test_on_a_real_model() -> None:
    """Energy, shipped classifier, sampling and texts on SmolLM2-135M."""
    model, tokenizer = load_causal_lm("smollm2-135m")
    lm = LanguageModel(model, tokenizer, "smollm2-135m")
    text, before = " is a place where people like to swim.", "The lake"
    ids = torch.tensor([[*lm.encode(before), *lm.encode(text)]])
    labels = ids.clone()
    labels[:, : len(lm.encode(before))] = -100
    own = model(input_ids=ids, labels=labels).loss.item() * len(lm.encode(text))
    assert lm.score(lm.encode(text), lm.encode(before)) == pytest.approx(own, abs=1e-3)
    check_constraint(prompt("This is amazing", "This is terrible"), lm, prompts=("The book",), length=5)
    check_constraint(classifier("positive") > 0.9, lm, prompts=("The book",), length=5)
    (sample,) = Sampler(lm).sample("The dog", 8, 1, ['keyword("beach")'], seed=1)
    assert sample.source == "draft"
    assert sample.verified
    assert "beach" in sample.text
