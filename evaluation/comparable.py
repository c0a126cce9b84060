"""Whether runs can be compared at all: the same prompts, the same number of samples for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mucola.errors import MucolaError
from mucola.generations import Run


def check_comparable(runs: Sequence[Run], samples: int | None) -> None:
    """Refuse runs over different prompts, and uneven numbers of samples: no number would mean anything."""
    first = runs[0]
    texts = Counter(first.prompts.values())
    sizes = {run.path: run.sizes() for run in runs}
    for run in runs[1:]:
        other = Counter(run.prompts.values())
        for one, two, missing in ((first, run, texts - other), (run, first, other - texts)):
            if missing:
                text = next(iter(missing))
                prompt_id = next(key for key, value in one.prompts.items() if value == text)
                raise MucolaError(
                    f"{one.path} and {two.path} are over different prompts: {text!r} ({one.where(prompt_id)}) "
                    f"has no samples in {two.path}."
                )
    expected = samples or Counter(sizes[first.path].values()).most_common(1)[0][0]
    for run in runs:
        for prompt_id, size in sizes[run.path].items():
            if size < expected or (samples is None and size != expected):
                raise MucolaError(
                    f"{run.where(prompt_id)}: prompt {prompt_id!r} has {size} samples, {expected} were expected. "
                    "Scores over several samples depend on their number; complete the run, or use the first K "
                    "of each prompt with --samples K."
                )
