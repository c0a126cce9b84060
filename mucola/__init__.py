"""Sample text from a language model subject to constraints (MuCoLa).

    import mucola
    from mucola import classifier, keyword

    lm = mucola.load("smollm2-135m")
    for sample in lm.sample("The book", length=20, num_samples=4, constraints=[keyword("beach")]):
        ...  # sample.text, sample.source, sample.verified

Names are imported when they are first used, so that ``import mucola`` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mucola.constraints import (
        Constraint,
        check_constraint,
        classifier,
        contrast,
        exclude,
        generative,
        keyword,
        most_likely,
        no_repetition,
        prompt,
    )
    from mucola.errors import MucolaError
    from mucola.language_model import LanguageModel
    from mucola.sampler import Sample, Sampler, load
    from mucola.settings import Settings
    from mucola.transformers_generate import generate

_CONSTRAINTS = (
    "Constraint check_constraint classifier contrast exclude generative keyword most_likely no_repetition prompt"
)
_HOMES = {
    **dict.fromkeys(_CONSTRAINTS.split(), "mucola.constraints"),
    "MucolaError": "mucola.errors",
    "LanguageModel": "mucola.language_model",
    "Sample": "mucola.sampler",
    "Sampler": "mucola.sampler",
    "Settings": "mucola.settings",
    "generate": "mucola.transformers_generate",
    "load": "mucola.sampler",
}

__all__ = [
    "Constraint",
    "LanguageModel",
    "MucolaError",
    "Sample",
    "Sampler",
    "Settings",
    "check_constraint",
    "classifier",
    "contrast",
    "exclude",
    "generate",
    "generative",
    "keyword",
    "load",
    "most_likely",
    "no_repetition",
    "prompt",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mucola' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
