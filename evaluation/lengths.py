"""Samples of different lengths, said with file and line: most numbers depend on how long a text is."""

from __future__ import annotations

from collections.abc import Sequence

from evaluation.measure import Measured


def mixed_lengths(run: Measured) -> str:
    """Which sample is the first of another length than most."""
    usual = run.lengths.most_common(1)[0][0]
    odd = next(length for length in run.first_of_length if length != usual)
    return (
        f"{_first_of(run, odd)} has {odd} tokens, most of {run.name} have {usual}: "
        f"{run.lengths.total() - run.lengths[usual]} of {run.lengths.total()} samples differ "
        f"({min(run.lengths)} to {max(run.lengths)} tokens); perplexity, dist-n and toxicity all depend on length."
    )


def differing_lengths(runs: Sequence[Measured]) -> list[str]:
    """Runs whose samples are not as long as those of the first run."""
    measured = [run for run in runs if run.lengths]
    return [
        f"{_first_of(run, usual)} has {usual} tokens like most of {run.name}, most of {measured[0].name} have {first}: "
        "the runs differ in the length of their samples, so their numbers are not comparable."
        for run in measured[1:]
        if (usual := run.lengths.most_common(1)[0][0]) != (first := measured[0].lengths.most_common(1)[0][0])
    ]


def _first_of(run: Measured, length: int) -> str:
    prompt_id, sample = run.first_of_length[length]
    return f"{run.run.where(prompt_id, sample)}: sample {sample} of prompt {prompt_id!r}"
