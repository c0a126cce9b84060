"""The judge language model: how likely a continuation is, given its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from evaluation.scorers.base import fastest_device, fingerprint
from mucola import model_store
from mucola.errors import MucolaError

BLOCK = 1 << 24
"""Logits that are computed at once: with a vocabulary of 262,144 those of 64 tokens, 64 MiB."""


class Judge:
    """Nats and number of the continuation's tokens; prompt and continuation are tokenised together.

    A token that begins in the prompt and ends in the continuation counts as the continuation's. Where
    the tokenizer has the habit, and then the revision says so, or where the prompt is empty, the text
    stands behind the start token.
    """

    batch_size = 16

    def __init__(self, model: str) -> None:
        self._model, self._tokenizer = model_store.load_causal_lm(model)
        self._device = fastest_device()
        self._model.to(self._device)
        if not self._tokenizer.is_fast:
            raise MucolaError(f"{model} cannot be a judge: its tokenizer does not tell where tokens are in the text.")
        source = model_store.resolve(model)
        local = Path(source).is_dir()
        print_ = fingerprint(*sorted(Path(source).glob("*.safetensors"))) if local else self._model.config._commit_hash
        start = self._tokenizer.bos_token_id
        self._habit = start is not None and self._tokenizer("a").input_ids[:1] == [start]
        self._start: int | None = start if start is not None else self._tokenizer.eos_token_id
        self.name = model
        self.revision = f"judge/{model}@{str(print_)[:12]}" + (f"+{self._tokenizer.bos_token}" if self._habit else "")
        self._check_logits()

    @torch.inference_mode()
    def score(self, items: Sequence[tuple[str, str]]) -> list[tuple[float, int] | None]:
        """(nats, tokens) of each (prompt, continuation); None where there is no token to judge."""
        rows, starts = zip(*(self._encode(prompt, text) for prompt, text in items), strict=True)
        longest = max(map(len, rows))
        tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=self._device)
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows], device=self._device)
        states = self._model.base_model(input_ids=tokens, attention_mask=mask, use_cache=False).last_hidden_state
        counts = [len(row) - start for row, start in zip(rows, starts, strict=True)]
        judged = [slice(start, start + count) for start, count in zip(starts, counts, strict=True)]
        before = torch.cat([states[row, place.start - 1 : place.stop - 1] for row, place in enumerate(judged)])
        nats = self._nats(before, torch.cat([tokens[row, place] for row, place in enumerate(judged)]))
        totals = [part.double().sum().item() for part in nats.split(counts)]
        return [(total, count) if count else None for total, count in zip(totals, counts, strict=True)]

    def _nats(self, states: Tensor, tokens: Tensor) -> Tensor:
        """-log p of each token from the state before it, in blocks: (tokens, dim), (tokens,) -> (tokens,)."""
        head = self._model.get_output_embeddings()
        block = max(1, BLOCK // head.weight.shape[0])
        nats = []
        for some, wanted in zip(states.split(block), tokens.split(block), strict=True):
            logits = head(some).float()
            if cap := getattr(self._model.config, "final_logit_softcapping", None):
                logits = cap * (logits / cap).tanh()
            nats.append(logits.logsumexp(1) - logits.gather(1, wanted[:, None])[:, 0])
        return torch.cat(nats)

    def _encode(self, prompt: str, text: str) -> tuple[list[int], int]:
        """Token ids, and the place of the continuation's first token (at least 1)."""
        encoded = self._tokenizer(prompt + text, add_special_tokens=False, return_offsets_mapping=True)
        ids, offsets = list(encoded["input_ids"]), encoded["offset_mapping"]
        first = next((index for index, (_, end) in enumerate(offsets) if end > len(prompt)), len(ids))
        if first and not self._habit:
            return ids, first
        if self._start is None:
            raise MucolaError(f"{self.name} has no start token to judge a text without a prompt.")
        return [self._start, *ids], first + 1

    @torch.inference_mode()
    def _check_logits(self) -> None:
        """The model's own loss of a few words: some families scale their logits behind the output layer."""
        ids, first = self._encode("The", " book is about")
        tokens = torch.tensor([ids], device=self._device)
        own = self._model(input_ids=tokens).logits[0, first - 1 : -1].float().log_softmax(1)
        expected = -own.gather(1, tokens[0, first:, None]).sum().item()
        ((nats, _),) = (answer for answer in self.score([("The", " book is about")]) if answer)
        if abs(nats - expected) > 1e-2 * max(1.0, expected):
            raise MucolaError(
                f"{self.name} cannot be a judge: it does more to its logits than its output layer and a soft cap."
            )
