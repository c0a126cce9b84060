"""Training scorers of one's own, and saying how good they are on data they have not seen."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evaluation.agreement import accuracy, auc, matthews
from evaluation.calibration import perspective_agreement, perspective_texts
from evaluation.scorers.base import Scorer
from evaluation.scorers.labelled import Example, load_labelled
from evaluation.scorers.ngrams import NgramSettings
from evaluation.scorers.presets import trained_scorer
from evaluation.scorers.probe import ProbeSettings, broken
from mucola.errors import MucolaError
from mucola.names import unknown

KINDS = ("ngrams", "probe")


@dataclass
class ScorerTraining:
    """What to learn from, what to test on, and how."""

    output: str
    """Folder of the new scorer; its name is the scorer's."""
    train: str
    """A labelled file, ``hub:NAME:SPLIT`` or ``package:NAME``."""
    held_out: str | None = None
    """Labelled data to test on; without it a share of the training data is set aside."""
    others: list[str] = field(default_factory=list)
    """Further data to test on, to see how far the scorer travels."""
    where: dict[str, str] = field(default_factory=dict)
    """Rows of the training data to use, by column."""
    perspective: str | None = None
    """RealToxicityPrompts rows, to tell how a toxicity scorer ranks texts in comparison with Perspective."""
    kind: str = "ngrams"
    held_out_examples: int = 10_000
    seed: int = 7
    ngrams: NgramSettings = field(default_factory=NgramSettings)
    probe: ProbeSettings = field(default_factory=ProbeSettings)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown("kind of scorer", self.kind, KINDS)
        if self.held_out_examples < 1:
            raise MucolaError("held_out_examples should be at least 1: an untested scorer is worth little.")


def train_scorer(training: ScorerTraining, advance: Callable[[int], object] = lambda count: None) -> Scorer:
    """Train, test and save a scorer; the folder is complete when this returns."""
    examples = load_labelled(training.train, training.where)
    random.Random(training.seed).shuffle(examples)
    if training.held_out:
        tests = {training.held_out: load_labelled(training.held_out)}
    else:
        cut = min(training.held_out_examples, len(examples) // 5)
        tests, examples = {f"{training.train}, set aside": examples[:cut]}, examples[cut:]
    tests.update({source: load_labelled(source) for source in training.others})
    if training.kind == "probe" and training.probe.corrupted:
        source, rows = next(iter(tests.items()))
        fine = [text for text, label in rows if label]
        harmed = broken(fine, len(fine), training.seed)
        tests[f"{source}, acceptable or broken"] = [(t, 1) for t in fine] + [(t, 0) for t in harmed]
    folder = Path(training.output)
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {"train": _short(training.train), "examples": len(examples), "held_out": {}}
    if training.kind == "ngrams":
        from evaluation.scorers.ngrams import train_ngrams

        train_ngrams(examples, training.ngrams, folder, config, advance)
    else:
        from evaluation.scorers.probe import train_probe

        train_probe(examples, training.probe, folder, config, advance)
    scorer = trained_scorer(folder, folder.resolve().name)
    quality = {_short(source): held_out(scorer, rows) for source, rows in tests.items()}
    if training.perspective:
        texts = perspective_texts(training.perspective)
        quality[f"Perspective in {_short(training.perspective)}"] = perspective_agreement(scorer, texts)
    stored = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    stored["held_out"] = quality
    (folder / "config.json").write_text(json.dumps(stored, indent=2) + "\n", encoding="utf-8")
    return trained_scorer(folder, folder.resolve().name)


def held_out(scorer: Scorer, examples: Sequence[Example]) -> dict[str, float]:
    """Accuracy, Matthews correlation and AUC of a scorer on labelled texts."""
    scores: list[float] = []
    for start in range(0, len(examples), scorer.batch_size):
        for score in scorer.score([text for text, _ in examples[start : start + scorer.batch_size]]):
            if score is None:
                raise MucolaError(f"{scorer.name} left a text unscored, so its accuracy is not known.")
            scores.append(score)
    truth = [label for _, label in examples]
    predicted = [score > 0.5 for score in scores]
    return {
        "examples": len(examples),
        "accuracy": round(accuracy(truth, predicted), 4),
        "matthews": round(matthews(truth, predicted), 4),
        "auc": round(auc(truth, scores), 4),
    }


def _short(source: str) -> str:
    """The file's name without folders: where data lay is nobody's business."""
    return source if source.startswith(("hub:", "package:")) else Path(source).name
