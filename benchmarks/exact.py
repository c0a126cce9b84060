"""How far samples are from the distribution they are meant to come from, where that can be written down.

    python -m benchmarks.exact

On a language model of 30 words and texts of 3 tokens, the total-variation distance of `faithful` chains, of
`fast` samples and of an ideal sampler (independent draws from the exact distribution) to the exact constrained
distribution. The ideal sampler's distance is what the finite number of samples alone accounts for.
"""

from __future__ import annotations

import json

import torch
from jsonargparse import auto_cli

from mucola.pool import Request
from mucola.prompts import Prompt, Sequences
from mucola.sampler import Sampler
from mucola.settings import Settings
from tests.mucola import exact


def main(count: int = 1000, steps: int = 200, threads: int = 1) -> None:
    """Draw ``count`` samples in each way and print their distances as JSON."""
    torch.set_num_threads(threads)
    lm, prompt, constraint = exact.language_model(), Prompt("w1 w2", (1, 2), "p"), exact.Bright()
    everything = Sequences.of(lm, [prompt] * exact.WORDS**exact.LENGTH, exact.all_sequences())
    target = exact.exact_probabilities(lm, prompt.tokens) * (constraint.value(everything) <= constraint.threshold)
    target = target / target.sum()
    generator = torch.Generator().manual_seed(0)
    found = {"ideal": exact.total_variation(torch.multinomial(target, count, True, generator=generator), target)}
    facts: dict[str, object] = {"count": count}
    for mode in ("fast", "faithful"):
        settings = Settings(mode=mode, nucleus=1.0, batch_size=250, steps=steps)  # type: ignore[arg-type]
        requests = (Request(prompt, exact.LENGTH, [constraint], index) for index in range(count))
        samples = list(Sampler(lm, settings).run(requests))
        kept = [sample.tokens for sample in samples if sample.source != "fallback"]
        facts[f"{mode}_sources"] = {s: sum(x.source == s for x in samples) for s in {x.source for x in samples}}
        facts[f"{mode}_distinct"] = len({tuple(tokens or ()) for tokens in kept})
        if kept:
            found[mode] = exact.total_variation(exact.index(torch.tensor(kept)), target)
    facts["total_variation"] = {name: round(value, 3) for name, value in found.items()}
    print(json.dumps(facts))


if __name__ == "__main__":
    auto_cli(main)
