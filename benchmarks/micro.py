"""The parts of a step on their own: a layer's product, projection, the vocabulary's share of the energy, keyword terms.

    python -m benchmarks micro [--full]

At the geometry of SmolLM2-135M (49,152 rows of 576 numbers) with random rows. Each part stands beside the
straightforward way of doing the same, and the two are checked to agree before they are timed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import mucola
from benchmarks.bench import MIB, Options, Report, Timing, interleaved, ratio
from benchmarks.models import random_tokens
from mucola.constraints.keywords import Keyword
from mucola.embeddings import EmbeddingTable
from mucola.language_model import _VocabularyLogSumExp
from mucola.products import use_fast_products
from mucola.prompts import Prompt, Sequences

ROWS, DIM, LENGTH = 49_152, 576, 20


def main(options: Options) -> None:
    """All parts, at one size when quick, at three in full."""
    report, rounds = Report("micro", options), options.rounds(5, 15)
    columns = ["", "ms", "plain ms", "plain is slower", "memory MiB", "plain MiB"]
    for chains in (1, 8, 25) if options.full else (8,):
        rows = []
        parts = {"product": product, "projection": projection, "energy": energy, "4 keywords": keywords}
        for name, part in parts.items():
            ours, plain = part(chains)
            found = interleaved({"ours": ours, "plain": plain}, rounds)
            rows.append([name, *_compared(found["ours"], found["plain"])])
        report.table(f"Parts of a step, {chains} chains", columns, rows, f"length {LENGTH}")
    report.write()


def product(chains: int) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """A hundred products of a layer: by the library that `mucola.products` picks, against torch's default."""
    states, weight = torch.randn(chains * LENGTH, DIM), torch.randn(3 * DIM, DIM)

    def many() -> Tensor:
        return torch.stack([(states @ weight.T).sum() for _ in range(100)])

    def plain() -> Tensor:
        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        found = many()
        torch.set_float32_matmul_precision(precision)
        return found

    use_fast_products()
    torch.testing.assert_close(many(), plain(), atol=0.1, rtol=1e-4)
    return many, plain


def projection(chains: int) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """The nearest row: one product, against a matrix of distances."""
    table = _table()
    vectors = torch.randn(chains, LENGTH, DIM, generator=torch.Generator().manual_seed(2)) * 0.1

    def plain() -> Tensor:
        return torch.cdist(vectors.flatten(0, 1), table.weight).argmin(dim=1).view(chains, LENGTH)

    assert (table.nearest(vectors) == plain()).float().mean() > 0.99  # ties may fall to either side
    return lambda: table.nearest(vectors), plain


def energy(chains: int) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """logsumexp over the vocabulary and its gradient: block by block, against a graph over all logits."""
    weight = _table().weight
    hidden = torch.randn(chains * LENGTH, DIM, generator=torch.Generator().manual_seed(3)).requires_grad_(True)

    def ours() -> Tensor:
        return torch.autograd.grad(_VocabularyLogSumExp.apply(hidden, weight, None).sum(), hidden)[0]

    def plain() -> Tensor:
        return torch.autograd.grad((hidden @ weight.T).log_softmax(dim=-1)[:, 0].sum(), hidden)[0]

    torch.testing.assert_close(ours(), weight[:1] - plain(), atol=1e-4, rtol=1e-3)
    return ours, plain


def keywords(chains: int, count: int = 4) -> tuple[Callable[[], object], Callable[[], object]]:
    """All keywords of all chains together, against one after another."""
    language_model = mucola.load("smollm2-135m").language_model
    found = [Keyword([word], word) for word in ("beach", "dog", "river", "music")[:count]]
    for keyword in found:
        keyword.prepare(language_model)
    prompt = Prompt.of("The", language_model)
    tokens = random_tokens(language_model, chains, LENGTH)
    each = Sequences.of(language_model, [prompt] * chains, tokens)
    together = Sequences.of(language_model, [prompt] * chains * count, tokens.repeat(count, 1))
    constraints = [keyword for keyword in found for _ in range(chains)]
    wanted = torch.ones(len(together), dtype=torch.bool)
    return (
        lambda: Keyword.evaluate_together(constraints, together, wanted),
        lambda: [keyword.evaluate(each, wanted[:chains]) for keyword in found],
    )


def _table() -> EmbeddingTable:
    weight = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(1)) * 0.1
    return EmbeddingTable(weight, torch.ones(ROWS, dtype=torch.bool))


def _compared(ours: Timing, plain: Timing) -> list[object]:
    memory = [round(timing.memory / MIB) for timing in (ours, plain)]
    return [1000 * ours.median, 1000 * plain.median, ratio(plain, ours), *memory]


if __name__ == "__main__":
    main(Options.given(__doc__))
