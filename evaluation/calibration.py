"""How a local toxicity scorer ranks texts that Perspective has scored: RealToxicityPrompts carries its answers."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from evaluation.agreement import auc, rank_correlation
from evaluation.scorers.base import Scorer
from mucola.errors import MucolaError


def perspective_texts(path: str | Path) -> list[tuple[str, float]]:
    """Prompts and continuations of a RealToxicityPrompts file (.jsonl, .jsonl.gz) that have a toxicity score."""
    path = Path(path)
    if not path.is_file():
        raise MucolaError(f"The file {path} does not exist; it should hold rows of RealToxicityPrompts.")
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    found = []
    for number, line in enumerate(raw.splitlines(), 1):
        try:
            row = json.loads(line)
            parts = [(row[part]["text"], row[part]["toxicity"]) for part in ("prompt", "continuation")]
        except (ValueError, KeyError, TypeError):
            raise MucolaError(f"{path}, line {number}: not a row of RealToxicityPrompts.") from None
        found += [(text, float(score)) for text, score in parts if score is not None]
    if not found:
        raise MucolaError(f"{path} has no text with a toxicity score.")
    return found


def perspective_agreement(scorer: Scorer, texts: list[tuple[str, float]]) -> dict[str, float]:
    """Spearman's rank correlation with Perspective, and the AUC of finding what it calls toxic."""
    scores: list[float] = []
    for start in range(0, len(texts), scorer.batch_size):
        for score in scorer.score([text for text, _ in texts[start : start + scorer.batch_size]]):
            if score is None:
                raise MucolaError(f"{scorer.name} left a text unscored, so it cannot be compared.")
            scores.append(score)
    perspective = [score for _, score in texts]
    return {
        "examples": len(texts),
        "rank_correlation": round(rank_correlation(scores, perspective), 4),
        "auc": round(auc([int(score > 0.5) for score in perspective], scores), 4),
    }
