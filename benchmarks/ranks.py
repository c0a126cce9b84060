"""Chains per second of two ranks against one, each with one thread, on the same run of ``mucola decode``.

    python -m benchmarks ranks --prompts prompts.txt

Starting and loading are left out: the run's own summary counts from the first request to the last sample. A rank's
batch has the same size in both ways, as it has in a long run: of 24 chains alone, one rank would make a batch of 24 and
two ranks batches of 12, which are slower each. The two ways take turns, and the ratio is the median over rounds; the
machine should have nothing else to do.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from jsonargparse import auto_cli

from mucola.generations import Run

DECODE = [sys.executable, "-m", "decoding"]


def main(
    prompts: Path,
    first: int = 24,
    samples: int = 4,
    length: int = 12,
    steps: int = 60,
    batch_size: int = 8,
    mode: str = "faithful",
    devices: int = 2,
    rounds: int = 2,
) -> None:
    """Decode the same prompts with one rank and with ``devices`` ranks, in turn."""
    options = [
        *("--prompts.file", str(prompts), "--prompts.first", str(first), "-n", str(samples), "--length", str(length)),
        *("--method.sampling.mode", mode, "--method.sampling.steps", str(steps), "--method.sampling.restarts", "0"),
        *("--method.sampling.batch_size", str(batch_size)),
    ]
    ratios = []
    for number in range(rounds):
        rates, texts = zip(*(_decode(options, count) for count in (1, devices)), strict=True)
        ratios.append(rates[1] / rates[0])
        same = sum(texts[0][key] == texts[1][key] for key in texts[0])
        print(f"round {number + 1}: {rates[0]:.3f} and {rates[1]:.3f} chains/s, {same}/{len(texts[0])} same texts")
    print(json.dumps({"ranks": devices, "ratio": round(statistics.median(ratios), 3)}))


def _decode(options: list[str], devices: int) -> tuple[float, dict[tuple[str, int], str]]:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*DECODE, *options, "--output", folder, "--devices", str(devices)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        rate = re.search(r"([\d.]+) samples/s", done.stdout)
        assert rate is not None
        return float(rate[1]), {(item.prompt_id, item.sample): item.text for group in Run(folder) for item in group}


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
