"""``python -m benchmarks NAME``: run a benchmark; without a name, list them; ``all`` runs those marked with *."""

from __future__ import annotations

import runpy
import subprocess
import sys

BENCHMARKS = {
    "step": "one step of a chain: the published code's way, ours, and the bare forward and backward pass *",
    "sample": "a finished sample: the published code's way, faithful, fast, and plain autoregressive *",
    "growth": "time and memory against chains, length and prompt; embeddings against the vocabulary simplex *",
    "micro": "projection, energy and keyword terms on their own *",
    "metrics": "all metrics that need no model on 100,000 generations *",
    "ranks": "one process against two",
    "continuous": "chains that leave make room: continuous against fixed batches",
    "convergence": "what limits convergence: chains as in the paper, and with one thing changed at a time",
    "sampler": "quality of samples on SmolLM2-135M",
    "results": "no benchmark: the pages of docs/results, from what experiments left behind",
    "exact": "distance to the exact distribution where it can be written down",
}
"""What each benchmark measures; the modules are imported when they are asked for."""


def main(arguments: list[str]) -> int:
    """Run the benchmark that the first argument names, with the other arguments."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__.strip() + "\nOptions of those with *: --full, --threads N, --repeats N, --output FOLDER.\n")
        for name, description in BENCHMARKS.items():
            print(f"  {name:<11} {description}")
        return 0
    name, *others = arguments
    if name == "all":
        marked = [key for key, description in BENCHMARKS.items() if description.endswith("*")]
        return max(subprocess.call([sys.executable, "-m", "benchmarks", key, *others]) for key in marked)
    if name not in BENCHMARKS:
        print(f"There is no benchmark {name!r}; there are: {', '.join(BENCHMARKS)}.", file=sys.stderr)
        return 2
    sys.argv = [f"python -m benchmarks {name}", *others]
    runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
