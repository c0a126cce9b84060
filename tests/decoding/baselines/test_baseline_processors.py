"""The processors by themselves, in ``generate()``: logits as in the papers, computed anew without cache or padding."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LogitsProcessor, PreTrainedTokenizerFast

from decoding.baselines import DExpertsProcessor, FudgeProcessor, GeDiProcessor
from mucola.attribute_models import AdaptedLM, AdaptedLMConfig, FutureDiscriminator
from mucola.errors import MucolaError
from tests.mucola.conftest import make_model

PROMPTS = ["The dog ran to the", "A", "This is a long road home and"]
KINDS = ["gpt2", "llama"]


class Batch:
    """Prompts that are padded on the left."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        rows = [tokenizer(text).input_ids for text in PROMPTS]
        longest = max(map(len, rows))
        self.ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
        self.mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])

    def generate(self, model: Any, processor: LogitsProcessor, tokens: int = 6) -> tuple[list[Tensor], Tensor]:
        """The rows as written, without padding, and the scores of each step: (rows, steps, vocabulary)."""
        torch.manual_seed(0)
        done = model.generate(
            input_ids=self.ids,
            attention_mask=self.mask,
            max_new_tokens=tokens,
            eos_token_id=None,
            pad_token_id=0,
            do_sample=True,
            top_k=0,
            logits_processor=[processor],
            return_dict_in_generate=True,
            output_scores=True,
        )
        read = torch.cat([self.mask, torch.ones(len(self.mask), tokens)], dim=1).bool()
        rows = [row[kept] for row, kept in zip(done.sequences, read, strict=True)]
        return rows, torch.stack(done.scores, dim=1)

    def prefixes(self, rows: list[Tensor], tokens: int = 6) -> list[list[Tensor]]:
        """What stood before each step of each row."""
        return [[row[: len(row) - tokens + step] for step in range(tokens)] for row in rows]


@pytest.fixture
def batch(tokenizer: PreTrainedTokenizerFast) -> Batch:
    return Batch(tokenizer)


def logits(model: Any, tokens: Tensor) -> Tensor:
    """After the last token, read from the beginning."""
    with torch.no_grad():
        return model(input_ids=tokens[None], use_cache=False).logits[0, -1]


def assert_same(found: Tensor, expected: Tensor) -> None:
    """Equal up to a constant, which no distribution sees, and -inf at the same tokens."""
    assert torch.equal(found.isinf(), expected.isinf())
    assert torch.allclose(found.softmax(0), expected.softmax(0), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_dexperts(kind: str, batch: Batch, tokenizer: PreTrainedTokenizerFast) -> None:
    base, expert, anti = (make_model(kind, len(tokenizer), seed).eval() for seed in range(3))
    processor = DExpertsProcessor(expert, anti, alpha=1.7, filter_p=0.8, attention_mask=batch.mask)
    rows, scores = batch.generate(base, processor)
    for row, prefixes in enumerate(batch.prefixes(rows)):
        for step, prefix in enumerate(prefixes):
            z = logits(base, prefix)
            order = z.argsort(descending=True)
            size = int((z.softmax(0)[order].cumsum(0) < 0.8).sum()) + 1  # the shortest head that holds 0.8
            expected = torch.full_like(z, -math.inf)
            head = order[:size]
            expected[head] = z[head] + 1.7 * (logits(expert, prefix)[head] - logits(anti, prefix)[head])
            assert_same(scores[row, step], expected)
            assert torch.allclose(scores[row, step][head], expected[head], atol=1e-4)
    assert scores.isinf().any()


@pytest.mark.parametrize("kind", KINDS)
def test_gedi(kind: str, batch: Batch, tokenizer: PreTrainedTokenizerFast) -> None:
    base, gedi = (make_model(kind, len(tokenizer), seed).eval() for seed in range(2))
    conditions = [tokenizer(word).input_ids for word in ("a bad one", "good")]
    assert len(conditions[0]) != len(conditions[1])
    settings: dict[str, Any] = {"omega": 5.0, "rho": 0.3, "tau": 0.6, "scale": 2.0}
    processor = GeDiProcessor(gedi, conditions, wanted=1, attention_mask=batch.mask, **settings)
    rows, scores = batch.generate(base, processor)
    by_mass = by_class = 0
    for row, prefixes in enumerate(batch.prefixes(rows)):
        for step, prefix in enumerate(prefixes):
            likelihood = []
            for condition in conditions:
                text = torch.cat([torch.tensor(condition), prefix])
                with torch.no_grad():
                    log_p = gedi(input_ids=text[None]).logits[0].log_softmax(1)
                past = sum(log_p[len(condition) - 1 + at, token] for at, token in enumerate(prefix))
                likelihood.append((past + log_p[-1]) * 2.0 / (len(prefix) + 1))
            p_class = torch.stack(likelihood).softmax(0)[1]
            p_w = logits(base, prefix).softmax(0) * p_class**5.0
            p_w = p_w / p_w.sum()
            kept, mass = set(), 0.0
            for token in p_class.argsort(descending=True).tolist():
                if mass >= 0.3:
                    break
                kept.add(token)
                mass += p_w[token].item()
            sure = set((p_class > 0.6).nonzero().squeeze(1).tolist())
            by_mass += len(kept - sure)
            by_class += len(sure - kept)
            expected = p_w.log()
            expected[[token for token in range(len(p_w)) if token not in kept | sure]] = -math.inf
            assert_same(scores[row, step], expected)
    assert by_mass, "some tokens were kept for their mass alone"
    assert by_class, "and some for their class alone"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("candidates", [12, 1000])
def test_fudge(kind: str, candidates: int, batch: Batch, tokenizer: PreTrainedTokenizerFast) -> None:
    base, reader = (make_model(kind, len(tokenizer), seed).eval() for seed in range(2))
    head = nn.Linear(32, 3)
    config = AdaptedLMConfig("future", ["a", "b", "c"], "tiny", "", tuning="frozen")
    discriminator = FutureDiscriminator(AdaptedLM(reader, config, None), head).requires_grad_(False)
    processor = FudgeProcessor(discriminator, 2, strength=3.0, candidates=candidates, attention_mask=batch.mask)
    rows, scores = batch.generate(base, processor, tokens=4)
    for row, prefixes in enumerate(batch.prefixes(rows, tokens=4)):
        for step, prefix in enumerate(prefixes):
            plain = logits(base, prefix).log_softmax(0)
            likely = plain.topk(min(candidates, len(plain))).indices
            texts = torch.stack([torch.cat([prefix, token[None]]) for token in likely])
            p_label = discriminator(input_ids=texts, use_cache=False)[0][:, -1].log_softmax(1)[:, 2]
            expected = torch.full_like(plain, -math.inf)
            expected[likely] = plain[likely] + 3.0 * p_label
            assert_same(scores[row, step], expected)


def test_a_second_text_is_read_from_its_beginning(tokenizer: PreTrainedTokenizerFast) -> None:
    """A processor that is used again, for another text, says what a new one says."""
    models = [make_model("llama", len(tokenizer), seed).eval() for seed in range(2)]
    used, zeros = DExpertsProcessor(*models), torch.zeros(1, len(tokenizer))
    for text in ("The dog ran", "The dog ran to the", "The cat sat on the book", "The"):
        ids = tokenizer(text, return_tensors="pt").input_ids
        assert torch.allclose(used(ids, zeros), DExpertsProcessor(*models)(ids, zeros), atol=1e-4)


def test_a_mask_for_another_batch_is_refused(batch: Batch, tokenizer: PreTrainedTokenizerFast) -> None:
    models = [make_model("llama", len(tokenizer), seed) for seed in range(2)]
    processor = DExpertsProcessor(*models, attention_mask=batch.mask[:2])
    with pytest.raises(MucolaError, match="make a new logits processor"):
        processor(batch.ids, torch.zeros(3, len(tokenizer)))
