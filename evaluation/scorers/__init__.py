"""Scorers: what gives texts their probability of being toxic, positive, grammatical."""

from evaluation.scorers.base import Scorer
from evaluation.scorers.cache import ScoreCache
from evaluation.scorers.presets import PRESETS, load_scorer

__all__ = ["PRESETS", "ScoreCache", "Scorer", "load_scorer"]
