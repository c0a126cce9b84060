"""K2T: tokens that resemble a keyword are made likelier (Pascual et al. 2021, arXiv 2109.09707)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LogitsProcessor

from decoding.baselines.left_to_right import LeftToRight, Rows, Steer
from decoding.baselines.wanted_words import Word, wanted_words
from mucola.constraints.words import appears
from mucola.errors import MucolaError
from mucola.language_model import LanguageModel
from mucola.pool import Request
from mucola.prompts import continuation_text


class K2TProcessor(LogitsProcessor):
    """``log p(x_t) + weight * max(0, max_w cos(x_t, w))`` over the keywords ``w`` that are still missing.

    With ``guarantee`` the weight grows exponentially from ``weight`` to ``most`` while the room for the missing
    words runs out, a keyword that was begun is finished, and once there is no other room left the words are
    written one after the other. A keyword is a word of its own: what follows it starts another one.
    """

    def __init__(
        self,
        language_model: LanguageModel,
        requests: Sequence[Request],
        weight: float = 5.0,
        guarantee: bool = True,
        most: float = 100.0,
    ) -> None:
        self.language_model = language_model
        self.requests = requests
        self.weight, self.guarantee, self.most = weight, guarantee, most
        self.words = [wanted_words(request, language_model, "K2T") for request in requests]
        self.padded = max(len(request.prompt.tokens) for request in requests)
        self.found = [0] * len(requests)
        self.found_at = [0] * len(requests)
        """How many tokens each row had when its last keyword was found."""
        self.similarities: dict[tuple[int, ...], Tensor] = {}

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        bent = scores.log_softmax(dim=1)
        for row, written in enumerate(input_ids[:, self.padded :].tolist()):
            bent[row] = self._bend(row, bent[row], written)
        return bent

    def _bend(self, row: int, scores: Tensor, written: list[int]) -> Tensor:
        request, words = self.requests[row], self.words[row]
        text = continuation_text(self.language_model, request.prompt, written)
        missing = [word for word in words if not appears(word.forms, request.prompt.text, text)]
        if len(words) - len(missing) > self.found[row]:
            self.found[row], self.found_at[row] = len(words) - len(missing), len(written)
        if any(_ends_with(written, tokens) for word in words if word not in missing for tokens in word.spellings):
            scores = scores.masked_fill(~self.language_model.starts_word, -torch.inf)
        if not missing:
            return scores
        weight = self.weight
        if self.guarantee:
            spare = request.length - len(written) - sum(len(word.spellings[0]) for word in missing)
            forced = _rest_of_begun(written, missing) or (missing[0].spellings[0] if spare <= 0 else ())
            if forced and scores[forced[0]] > -torch.inf:
                return torch.full_like(scores, -torch.inf).index_fill(0, torch.tensor(forced[:1]).to(scores.device), 0)
            since = len(written) - self.found_at[row]
            weight *= (self.most / weight) ** (since / max(1, since + spare))
        return scores + weight * torch.stack([self._similarity(word.spellings[0]) for word in missing]).amax(dim=0)

    def _similarity(self, spelling: tuple[int, ...]) -> Tensor:
        """max(0, cos) of every token's row with the mean row of a word; 1 for the token that begins it.

        All rows of a table lean the same way, so the mean cosine over the vocabulary counts as 0.
        """
        if spelling not in self.similarities:
            rows = self.language_model.table.input_part(self.language_model.table.weight)
            mean = rows[list(spelling)].mean(dim=0)
            found = torch.nn.functional.cosine_similarity(rows, mean[None], dim=1)
            found = ((found - found.mean()) / (1 - found.mean())).clamp(min=0)
            found[spelling[0]] = 1.0
            self.similarities[spelling] = found
        return self.similarities[spelling]


def _ends_with(written: list[int], tokens: tuple[int, ...]) -> bool:
    return tuple(written[-len(tokens) :]) == tokens


def _rest_of_begun(written: list[int], words: list[Word]) -> tuple[int, ...]:
    """What is left to write of the word that ``written`` ends in the longest beginning of, or nothing."""
    begun = [
        (size, word.spellings[0][size:])
        for word in words
        for size in range(1, len(word.spellings[0]))
        if _ends_with(written, word.spellings[0][:size])
    ]
    return max(begun)[1] if begun else ()


class K2T(LeftToRight):
    """Guides towards the keywords in a prompt's constraints.

    The paper measures similarity with GloVe vectors; here it is between rows of the language model's own table
    (the mean row of a word of several tokens), less what any two rows have in common, so that nothing else has to
    be fetched.

    Args:
        weight: the paper's lambda; 5 in its commands for ROC stories and news articles.
        guarantee: make sure that every keyword appears.
        most: what the weight grows to while room runs out; 100 in its code.
        nucleus: probability mass to sample from; 0.9 in the paper.
        batch_size: samples that are written together.
    """

    name = "k2t"

    def __init__(
        self,
        weight: float = 5.0,
        guarantee: bool = True,
        most: float = 100.0,
        nucleus: float = 0.9,
        batch_size: int = 32,
    ) -> None:
        super().__init__(nucleus, 0, batch_size)
        if not 0 < weight <= most:
            raise MucolaError(f"The weight of K2T is above 0 and at most {most}, not {weight}.")
        self.weight, self.guarantee, self.most = weight, guarantee, most

    def steer(self, language_model: LanguageModel) -> Steer:
        def processors(requests: Sequence[Request], rows: Rows) -> list[LogitsProcessor]:
            return [K2TProcessor(language_model, requests, self.weight, self.guarantee, self.most)]

        return processors
