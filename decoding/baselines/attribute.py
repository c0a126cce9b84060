"""The attribute models that steer baselines, checked before anything is written."""

from __future__ import annotations

from mucola.attribute_models import AdaptedLM, FutureDiscriminator, load_attribute_model
from mucola.errors import MucolaError
from mucola.language_model import LanguageModel
from mucola.names import unknown

KINDS = {
    "class_lm": "a language model of one class (`mucola train` with ClassLMTraining)",
    "generative": "a generative classifier (`mucola train` with GenerativeTraining)",
    "future": "a future discriminator (`mucola train` with FutureTraining)",
}


def load_adapted(name: str, kind: str, language_model: LanguageModel) -> AdaptedLM:
    """The ``class_lm`` or ``generative`` checkpoint called ``name``."""
    loaded = load_attribute_model(name, language_model.table, language_model.model)
    if not isinstance(loaded, AdaptedLM) or loaded.config.kind != kind:
        raise _wrong_kind(name, kind)
    return loaded


def load_future(name: str, language_model: LanguageModel) -> FutureDiscriminator:
    """The ``future`` checkpoint called ``name``."""
    loaded = load_attribute_model(name, language_model.table, language_model.model)
    if not isinstance(loaded, FutureDiscriminator):
        raise _wrong_kind(name, "future")
    return loaded


def label_index(name: str, label: str, labels: list[str]) -> int:
    """Where an attribute model keeps a label."""
    if label not in labels:
        raise unknown(f"label of {name}", label, labels)
    return labels.index(label)


def _wrong_kind(name: str, kind: str) -> MucolaError:
    return MucolaError(f"{name} is not {KINDS[kind]}, which this method steers with.")
