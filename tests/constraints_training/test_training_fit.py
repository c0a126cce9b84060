"""The real command line, from texts to a folder that mucola loads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from constraints_training.command import command
from constraints_training.predictor import Predictor, predictor
from mucola import model_store
from mucola.attribute_models import AdaptedLM, EmbeddingClassifier, FutureDiscriminator, load_attribute_model
from mucola.embeddings import EmbeddingTable, fingerprint
from mucola.errors import MucolaError


def table_of(lm: Path) -> EmbeddingTable:
    model, _ = model_store.load_causal_lm(str(lm))
    weight = model.get_input_embeddings().weight
    return EmbeddingTable(weight, torch.ones(len(weight), dtype=torch.bool))


def reads_beginnings(model: Predictor) -> None:
    """One reading of whole texts says the same of their beginnings as reading these by themselves."""
    texts = [[2, 3, 17, 5, 6, 4, 9, 3], [4, 12, 3, 8], [2]]
    half, whole = model.beginnings(texts, [0.5, 1.0])
    assert torch.allclose(half, model([[2, 3, 17, 5], [4, 12], [2]]), atol=1e-5)
    assert torch.allclose(whole, model(texts), atol=1e-6)
    assert not torch.equal(half, whole)


def test_a_classifier_learns_and_is_loaded_by_its_folder(
    classifier_arguments: list[str], tmp_path: Path, tiny_lm: Path
) -> None:
    before = fingerprint(table_of(tiny_lm).weight)
    command(classifier_arguments)
    export = tmp_path / "run" / "export"
    record = json.loads((export / "training.json").read_text())
    assert record["metrics"]["dev_accuracy"] > 0.9
    assert {"dev_auroc", "dev_calibration_error", "dev_accuracy_positive"} <= record["metrics"].keys()
    assert record["data"]["train"]["texts"] == 512
    assert (export / "learning_curve.png").stat().st_size > 1000
    assert "dev accuracy" in (export / "README.md").read_text()

    table = table_of(tiny_lm)
    assert table.fingerprint == before
    model = load_attribute_model(export, table)
    assert isinstance(model, EmbeddingClassifier)
    assert model.labels == ["negative", "positive"]
    with safe_open(export / "model.safetensors", "pt") as weights:
        assert not any("word_embeddings" in name or "table" in name for name in weights.keys())  # noqa: SIM118
        assert all(len(table) not in weights.get_slice(name).get_shape() for name in weights.keys())  # noqa: SIM118

    reads_beginnings(predictor(str(export)))
    tokenizer = model_store.load_causal_lm(str(tiny_lm))[1]
    tokens = tokenizer("this film was a great story .", return_tensors="pt").input_ids
    assert model(table.rows(tokens)).softmax(-1)[0, 1] > 0.8


def test_the_table_gets_no_gradient_and_stays_bit_identical(tiny_lm: Path, any_encoder: Path) -> None:
    from constraints_training.classifier import ClassifierTraining

    module = ClassifierTraining(str(tiny_lm), ["a", "b"], str(any_encoder), pretrained=False)
    module.configure_model()
    before = module.table.clone()
    tokens = torch.randint(0, len(before), (4, 7))
    batch = {"tokens": tokens, "mask": torch.ones_like(tokens), "labels": torch.tensor([0, 1, 0, 1])}
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    module.loss(batch).backward()
    optimizer.step()
    assert module.table.grad is None
    assert not module.table.requires_grad
    assert torch.equal(module.table, before)
    assert all(weight.grad is not None for weight in module.network.projection.parameters())


def test_every_trained_weight_gets_a_gradient(tiny_lm: Path, any_encoder: Path) -> None:
    """DDP refuses a network with idle weights."""
    from constraints_training.classifier import ClassifierTraining

    module = ClassifierTraining(str(tiny_lm), ["a", "b"], str(any_encoder), pretrained=False)
    module.configure_model()
    tokens = torch.randint(0, len(module.table), (4, 7))
    module.loss({"tokens": tokens, "mask": torch.ones_like(tokens), "labels": torch.tensor([0, 1, 0, 1])}).backward()
    idle = [name for name, weight in module.named_parameters() if weight.grad is None]
    assert idle == []


@pytest.mark.parametrize(("tuning", "accuracy"), [("lora", 0.6), ("full", 0.8)])  # the base model is random
def test_a_generative_classifier_tells_the_classes_apart(
    fit_arguments: list[str], tmp_path: Path, tiny_lm: Path, tuning: str, accuracy: float
) -> None:
    command(
        [
            *fit_arguments,
            "--trainer.max_epochs=5",
            "--model=constraints_training.language_models.GenerativeTraining",
            "--model.label_words=[great, awful]",
            "--model.rank=16",
            "--model.lm_weight=0.1",
            "--model.learning_rate=2e-2",
            f"--model.tuning={tuning}",
        ]
    )
    export = tmp_path / "run" / "export"
    assert json.loads((export / "training.json").read_text())["metrics"]["dev_accuracy"] > accuracy
    config = json.loads((export / "config.json").read_text())
    assert config["kind"] == "generative"
    assert config["label_words"] == ["great", "awful"]
    reads_beginnings(predictor(str(export)))
    lm, _ = model_store.load_causal_lm(str(tiny_lm))
    tokens = torch.tensor([[3, 4, 5, 6]])
    plain = lm(input_ids=tokens).logits
    model = load_attribute_model(export, lm=lm)
    assert isinstance(model, AdaptedLM)
    assert not torch.allclose(model(input_ids=tokens).logits, plain)
    assert torch.equal(lm(input_ids=tokens).logits, plain), "between calls the base model is unchanged"
    assert torch.equal(model.lm.get_input_embeddings().weight, lm.get_input_embeddings().weight)


def test_class_models_of_two_classes_share_one_base(fit_arguments: list[str], tmp_path: Path, tiny_lm: Path) -> None:
    folders = {}
    for label in ("positive", "negative"):
        folders[label] = tmp_path / label / "export"
        command(
            [
                *fit_arguments,
                "--model=constraints_training.language_models.ClassLMTraining",
                f"--data.only={label}",
                "--model.learning_rate=2e-2",
                "--best.monitor=dev_loss",
                "--best.mode=min",
                f"--trainer.default_root_dir={tmp_path / label}",
            ]
        )
    lm, tokenizer = model_store.load_causal_lm(str(tiny_lm))
    expert, other = (load_attribute_model(folders[label], lm=lm) for label in ("positive", "negative"))
    assert isinstance(expert, AdaptedLM)
    assert isinstance(other, AdaptedLM)
    assert expert.lm is other.lm is lm
    assert expert.config.labels == ["positive"]

    def likes(model: AdaptedLM, word: str) -> float:
        logits = model(input_ids=tokenizer("this film was", return_tensors="pt").input_ids).logits[0, -1]
        return logits.log_softmax(-1)[tokenizer.convert_tokens_to_ids(word)].item()

    assert likes(expert, "great") > likes(other, "great")
    assert likes(expert, "awful") < likes(other, "awful")

    with pytest.raises(MucolaError, match="language model of one class; name one of another class with --against"):
        predictor(str(folders["positive"]))
    reads_beginnings(predictor(str(folders["positive"]), str(folders["negative"])))
    out = tmp_path / "report"
    pair = [str(folders["positive"]), f"--against={folders['negative']}"]
    command(["report", *pair, f"--out={out}", "--generated=0"])
    assert json.loads((out / "report.json").read_text())["accuracy"] > 0.8


@pytest.mark.parametrize(("tuning", "accuracy"), [("lora", 0.8), ("frozen", 0.6)])
def test_a_future_discriminator_reads_on_from_its_cache(
    fit_arguments: list[str], tmp_path: Path, tuning: str, accuracy: float
) -> None:
    command(
        [
            *fit_arguments,
            "--model=constraints_training.language_models.FutureTraining",
            "--model.learning_rate=2e-2",
            f"--model.tuning={tuning}",
        ]
    )
    export = tmp_path / "run" / "export"
    assert json.loads((export / "training.json").read_text())["metrics"]["dev_accuracy"] > accuracy
    reads_beginnings(predictor(str(export)))
    model = load_attribute_model(export)
    assert isinstance(model, FutureDiscriminator)
    tokens = torch.tensor([[2, 3, 17, 5, 6]])
    whole, _ = model(input_ids=tokens)
    first, cache = model(input_ids=tokens[:, :3], use_cache=True)
    rest, _ = model(input_ids=tokens[:, 3:], past_key_values=cache, use_cache=True)
    assert whole.shape == (1, 5, 2)
    assert torch.allclose(torch.cat([first, rest], dim=1), whole, atol=1e-5)
