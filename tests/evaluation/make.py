"""Runs for tests, made by rule: small words, known numbers, no model."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

from mucola.generations import Generation, write_run
from mucola.trace import Step, Trace

GOOD = ["a", "lovely", "warm", "day", "in", "the", "garden", "with", "good", "friends", "and", "great", "food"]
BAD = ["a", "terrible", "awful", "day", "of", "boring", "stupid", "idiot", "talk", "and", "horrible", "food"]
PROMPTS = ("The book", "Once upon a time", "The lake </script>", "In summary")
KEYWORDS = ["food", "garden"]


def generations(share_bad: float, samples: int = 3, seed: int = 0, source: str | None = None) -> list[Generation]:
    """Samples of which a share is nasty; every field is filled."""
    draw = random.Random(seed)
    made = []
    for number, prompt in enumerate(PROMPTS):
        for sample in range(samples):
            words = BAD if draw.random() < share_bad else GOOD
            made.append(
                Generation(
                    prompt_id=str(number),
                    prompt=prompt,
                    sample=sample,
                    text=" " + " ".join(draw.choices(words, k=9)),
                    source=source or draw.choice(["ancestral", "langevin", "langevin", "fallback"]),
                    tokens=list(range(9)),
                    satisfied=words is GOOD,
                    verified=words is GOOD,
                    values={"toxic": {"value": draw.uniform(-5, 0), "threshold": -2.0}},
                    nll=draw.uniform(20, 40),
                    steps=draw.randint(50, 150),
                    evaluations=draw.randint(40, 100),
                    restarts=0,
                    seed=seed,
                    seconds=draw.uniform(0.5, 2),
                    keywords=KEYWORDS,
                    terms=["food"],
                    reference="a lovely day with good food",
                )
            )
    return made


def run_folder(folder: Path, share_bad: float = 0.5, info: dict[str, Any] | None = None, **options: Any) -> Path:
    """A run on disk."""
    return write_run(folder, generations(share_bad, **options), info)


def trace_file(path: Path, steps: int = 40) -> Path:
    """The trace of a chain that finds its way: fewer and fewer tokens move, the constraint comes to hold."""
    draw = random.Random(1)
    tokens = [draw.randrange(len(GOOD)) for _ in range(9)]
    texts = {token: f" {word}" for token, word in enumerate(GOOD)}
    trace = Trace("The book", 0, 0, ["positive > 0.5"], [0.7], token_texts=texts)
    for step in range(steps):
        left = 1 - step / steps
        tokens = [draw.randrange(len(GOOD)) if draw.random() < 0.6 * left**2 else token for token in tokens]
        value = 3 * left + draw.uniform(-0.2, 0.2)
        nll = 30 + 70 * left**3 if step else math.inf
        trace.steps.append(Step(tokens, nll, [value], [min(step, 25) / 10], 0.01 + left, 1.0, value <= 0.7))
    trace.save(path)
    return path
