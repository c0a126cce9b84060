"""The judge language model: how likely a continuation is, given its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from evaluation.scorers.base import fastest_device, fingerprint
from mucola import model_store
from mucola.errors import MucolaError


class Judge:
    """Nats and number of the continuation's tokens; prompt and continuation are tokenised together.

    A token that begins in the prompt and ends in the continuation counts as the continuation's. Where
    the prompt is empty, or the tokenizer has the habit, the text stands behind the start token.
    """

    batch_size = 16

    def __init__(self, model: str) -> None:
        self._model, self._tokenizer = model_store.load_causal_lm(model)
        self._device = fastest_device()
        self._model.to(self._device)
        source = model_store.resolve(model)
        local = Path(source).is_dir()
        print_ = fingerprint(*sorted(Path(source).glob("*.safetensors"))) if local else self._model.config._commit_hash
        self.name = model
        self.revision = f"judge/{model}@{str(print_)[:12]}"
        start = self._tokenizer.bos_token_id
        self._start: int | None = start if start is not None else self._tokenizer.eos_token_id
        if not self._tokenizer.is_fast:
            raise MucolaError(f"{model} cannot be a judge: its tokenizer does not tell where tokens are in the text.")

    @torch.inference_mode()
    def score(self, items: Sequence[tuple[str, str]]) -> list[tuple[float, int] | None]:
        """(nats, tokens) of each (prompt, continuation); None where there is no token to judge."""
        rows, starts = zip(*(self._encode(prompt, text) for prompt, text in items), strict=True)
        longest = max(map(len, rows))
        tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=self._device)
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows], device=self._device)
        logits = self._model(input_ids=tokens, attention_mask=mask).logits[:, :-1].float()
        nats = nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
        answers: list[tuple[float, int] | None] = []
        for index, (row, start) in enumerate(zip(rows, starts, strict=True)):
            count = len(row) - start
            total = nats[index, start - 1 : len(row) - 1].double().sum().item()
            answers.append((total, count) if count > 0 else None)
        return answers

    def _encode(self, prompt: str, text: str) -> tuple[list[int], int]:
        """Token ids, and the place of the continuation's first token (at least 1)."""
        encoded = self._tokenizer(prompt + text, return_offsets_mapping=True)
        ids, offsets = list(encoded["input_ids"]), encoded["offset_mapping"]
        first = next((index for index, (_, end) in enumerate(offsets) if end > len(prompt)), len(ids))
        if first == 0 or not ids:
            if self._start is None:
                raise MucolaError(f"{self.name} has no start token to judge a text without a prompt.")
            return [self._start, *ids], first + 1
        return ids, first
