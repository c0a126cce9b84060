"""One step of a chain: the published code's way, ours alone and in a batch, and the least that the models allow.

    python -m benchmarks step [--full]

Geometry of GPT-2 small and of a RoBERTa-base classifier, random weights, a prompt of 8 tokens and 20 new ones. Every
chain is evaluated at every step here, and its constraint is violated; in real runs chains that stand still cost next
to nothing. The floor is the forward and backward pass of the same two models on the same tokens, with the prompt
known, and nothing else: no noise, no projection, no multipliers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.bench import MIB, Options, Report, Timing, interleaved, ratio, resident
from benchmarks.models import chains, classifier_constraint, gpt2_small, random_tokens, roberta_base
from benchmarks.published import PublishedLoop
from mucola import calibration, langevin
from mucola.attribute_models import EmbeddingClassifier
from mucola.langevin import Batch, Dynamics
from mucola.language_model import LanguageModel
from mucola.settings import Settings

PROMPT, LENGTH, BATCH = 8, 20, 25


def main(options: Options) -> None:
    """Measure all cases in turns."""
    report = Report("step", options)
    cases, chain_steps = make_cases(gpt2_small(), BATCH)
    weights = resident()
    found = interleaved(cases, options.rounds(3, 15))
    report.keep("step", found)
    report.table(*_table(found, chain_steps, weights))
    report.write()


def make_cases(
    language_model: LanguageModel, batch: int, **encoder: int
) -> tuple[dict[str, Callable[[], object]], dict[str, int]]:
    """What to run, and how many chain-steps each run is."""
    classifier = roberta_base(language_model.table.dim, **encoder)
    dynamics = calibration.dynamics(language_model, Settings(mode="faithful"))
    constraint = classifier_constraint(classifier)
    one = chains(language_model, 1, PROMPT, [constraint])
    many = chains(language_model, batch, PROMPT, [constraint])
    loop = PublishedLoop(language_model, classifier, 1, constraint.threshold, one.chains[0].prompt.tokens, dynamics)
    loop.start(random_tokens(language_model, 1, LENGTH)[0], seed=0)
    cases = {
        "published": lambda: loop.run(2),
        "ours, 1 chain": stepping(one, dynamics, 4),
        f"ours, {batch} chains": stepping(many, dynamics, 1),
        "floor, 1 chain": floor(one, classifier, 4),
        f"floor, {batch} chains": floor(many, classifier, 1),
    }
    return cases, dict(zip(cases, (2, 4, batch, 4, batch), strict=True))


def stepping(batch: Batch, dynamics: Dynamics, steps: int, length: int = LENGTH) -> Callable[[], None]:
    """Go on with the same chains, so many steps a call."""
    state = langevin.init(batch, random_tokens(batch.language_model, len(batch), length), dynamics)

    def work() -> None:
        nonlocal state
        for _ in range(steps):
            state, _info = langevin.step(batch, state, dynamics, everything=True)

    return work


def floor(batch: Batch, classifier: EmbeddingClassifier, times: int) -> Callable[[], None]:
    """Both models forward and backward, as transformers has them, with respect to the embeddings."""
    model, table = batch.language_model.model, batch.language_model.table
    tokens = random_tokens(batch.language_model, len(batch), LENGTH)
    prefix = batch.language_model.prefix(batch.chains[0].prompt.tokens)
    first = prefix.hidden.expand(len(tokens), 1, -1)
    constants: Tensor = torch.tensor([1])

    def work() -> None:
        for _ in range(times):
            embeddings = table.rows(tokens).requires_grad_(True)
            states = model.base_model(inputs_embeds=embeddings[:, :-1], use_cache=False).last_hidden_state
            logits = model.get_output_embeddings()(torch.cat([first, states], dim=1))
            nll = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="sum")
            value = torch.nn.functional.cross_entropy(classifier(embeddings), constants.expand(len(tokens)))
            torch.autograd.grad(nll + value, embeddings)

    return work


def _table(
    found: dict[str, Timing], chain_steps: dict[str, int], weights: int
) -> tuple[str, list[str], list[list[object]], str]:
    """Seconds and memory of a chain-step, against the published way and against the floor of the same batch."""
    rows: list[list[object]] = []
    for name, timing in found.items():
        bottom = f"floor, {name.split(', ')[1]}" if name.startswith("ours") else None
        rows.append(
            [
                name,
                timing.median / chain_steps[name],
                round(timing.memory / MIB),
                round((weights + timing.memory) / MIB),
                ratio(found["published"], timing, chain_steps[name] / chain_steps["published"]),
                ratio(timing, found[bottom]) if bottom else "",
            ]
        )
    columns = ["", "s per chain-step", "memory MiB", "with models MiB", "times published", "against floor"]
    return "Step", columns, rows, "median and range over the rounds; the models take the rest of the memory"


if __name__ == "__main__":
    main(Options.given(__doc__))
