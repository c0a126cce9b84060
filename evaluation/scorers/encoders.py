"""Scorers that are transformers models: any classifier from the hub or a folder, and our own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from evaluation.scorers.base import Scorer, fastest_device, fingerprint
from mucola import model_store
from mucola.errors import MucolaError
from mucola.names import unknown


class ClassifierScorer(Scorer):
    """A sequence classifier by hub id or folder, read with its own tokenizer.

    ``label`` names the class whose probability is the score. ``multi_label`` is for models of the
    Detoxify type, whose classes are independent yes-or-no questions: each has its own sigmoid.
    """

    batch_size = 32

    def __init__(self, model: str, label: str, multi_label: bool = False, name: str | None = None) -> None:
        from transformers import AutoModelForSequenceClassification

        self._model, self._tokenizer = model_store.load_pretrained(model, AutoModelForSequenceClassification)
        self._model.to(fastest_device())
        self._index = _class_index(self._model.config, label, model)
        self._multi_label = multi_label
        self._place(name or model, model, label)

    def _place(self, name: str, model: str, label: str) -> None:
        source = model_store.resolve(model)
        print_ = _revision(Path(source)) if Path(source).is_dir() else str(self._model.config._commit_hash)
        self.name = name
        self.revision = f"{model}#{label}@{print_[:12]}"
        self.identities = frozenset({model, source, print_})

    @torch.inference_mode()
    def score(self, texts: Sequence[str]) -> list[float | None]:
        encoded = self._tokenizer(
            list(texts), return_tensors="pt", padding=True, truncation=True, max_length=_longest(self._tokenizer)
        )
        logits = self._model(**encoded.to(self._model.device)).logits.float()
        scores = logits.sigmoid() if self._multi_label else logits.softmax(-1)
        return scores[:, self._index].tolist()


class AttributeModelScorer(Scorer):
    """One of our own trained classifiers, on the table and with the tokenizer of its language model.

    It reads text as the sampler's constraint does. Where it steered a run, the report says so.
    """

    batch_size = 32

    def __init__(self, model: str, label: str, name: str | None = None) -> None:
        from mucola.attribute_models import EmbeddingClassifier
        from mucola.attribute_models.store import find_attribute_model, load_attribute_model, read_config

        folder = find_attribute_model(model)
        config = read_config(folder)
        lm, self._tokenizer = model_store.load_causal_lm(config["base_model"])
        loaded = load_attribute_model(model, lm=lm)
        if not isinstance(loaded, EmbeddingClassifier):
            raise MucolaError(f"{model} is of the kind {config['kind']!r}; only a classifier can score texts.")
        if label not in loaded.labels:
            raise unknown(f"class of {model}", label, loaded.labels)
        self._device = fastest_device()
        self._model = _moved(loaded, self._device)
        self._index = loaded.labels.index(label)
        self._table = lm.get_input_embeddings().weight.to(self._device)
        self.name = name or model
        print_ = _revision(folder)
        self.revision = f"{model}#{label}@{print_}"
        self.identities = frozenset({model, str(folder), str(folder.resolve()), folder.name, print_})

    @torch.inference_mode()
    def score(self, texts: Sequence[str]) -> list[float | None]:
        rows = [self._tokenizer.encode(text, add_special_tokens=False)[: self._model.max_length] for text in texts]
        longest = max(1, *map(len, rows))
        tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=self._device)
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows], device=self._device)
        logits = self._model.classify_tokens(tokens, self._table, mask)
        return logits.softmax(-1)[:, self._index].tolist()


class MeasurementScorer(Scorer):
    """A measurement of the ``evaluate`` library, such as its ``toxicity``: any that answers with a list of scores."""

    def __init__(self, module: str, key: str, name: str | None = None) -> None:
        import evaluate

        try:
            self._measurement: Any = evaluate.load(module, module_type="measurement")
        except Exception as error:
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise MucolaError(f"The measurement {module!r} of `evaluate` cannot be loaded: {first}") from error
        self._key = key
        self.name = name or f"evaluate-{module}"
        self.revision = f"evaluate/{module}#{key}@{self._measurement._hash or evaluate.__version__}"
        self.identities = frozenset({module})

    def score(self, texts: Sequence[str]) -> list[float | None]:
        scores = self._measurement.compute(predictions=list(texts))[self._key]
        return [float(score) for score in scores]


def _moved(model: Any, device: str) -> Any:
    return model.to(device)


def _class_index(config: Any, label: str, model: str) -> int:
    names = {str(name).lower(): int(index) for index, name in config.id2label.items()}
    if label.lower() not in names:
        raise unknown(f"class of {model}", label, [str(name) for name in config.id2label.values()])
    return names[label.lower()]


def _revision(folder: Path) -> str:
    return fingerprint(*sorted(folder.glob("*.safetensors")))


def _longest(tokenizer: Any) -> int:
    return min(int(tokenizer.model_max_length), 512)
