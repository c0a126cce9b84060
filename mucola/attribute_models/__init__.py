"""Models of an attribute (sentiment, toxicity, ...) on a language model's own embedding table."""

from mucola.attribute_models.adapted_lm import AdaptedLM, AdaptedLMConfig, FutureDiscriminator, save_adapted_lm
from mucola.attribute_models.classifier import EmbeddingClassifier, EmbeddingClassifierConfig
from mucola.attribute_models.store import find_attribute_model, load_attribute_model, read_config, shipped

__all__ = [
    "AdaptedLM",
    "AdaptedLMConfig",
    "EmbeddingClassifier",
    "EmbeddingClassifierConfig",
    "FutureDiscriminator",
    "find_attribute_model",
    "load_attribute_model",
    "read_config",
    "save_adapted_lm",
    "shipped",
]
