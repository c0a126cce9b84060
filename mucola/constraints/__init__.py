"""Constraints: what a text must satisfy, one file a kind."""

from mucola.constraints.base import Constraint, Evaluation
from mucola.constraints.classifiers import classifier, most_likely
from mucola.constraints.contrasts import contrast, generative, prompt
from mucola.constraints.exclusions import exclude, no_repetition
from mucola.constraints.keywords import keyword
from mucola.constraints.notation import parse, parse_all
from mucola.constraints.testing import check_constraint

__all__ = [
    "Constraint",
    "Evaluation",
    "check_constraint",
    "classifier",
    "contrast",
    "exclude",
    "generative",
    "keyword",
    "most_likely",
    "no_repetition",
    "parse",
    "parse_all",
    "prompt",
]
