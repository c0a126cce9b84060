"""Beam search that has to write keywords: dynamic beam allocation (Post, Vilar 2018, arXiv 1804.06609).

The beam is divided among hypotheses by how many of the keywords' tokens they have written, so that those which
pay for a keyword now are not crowded out by those that put it off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache

from decoding.baselines.batches import Baseline, Write
from decoding.baselines.left_to_right import Rows
from decoding.baselines.wanted_words import Word, wanted_words
from mucola.errors import MucolaError
from mucola.language_model import LanguageModel
from mucola.pool import Request


class Hypothesis(NamedTuple):
    """A text in the making."""

    tokens: tuple[int, ...] = ()
    log_p: float = 0.0
    met: frozenset[int] = frozenset()
    """Numbers of the keywords that it has."""
    begun: tuple[int, tuple[int, ...]] | None = None
    """The keyword that it is in the middle of, and the tokens that are left of it."""
    closing: bool = False
    """Whether it has just finished a keyword, so that the next token must not go on with that word."""

    def then(self, token: int, log_p: float, words: Sequence[Word]) -> Hypothesis:
        """The hypothesis with one more token."""
        grown = Hypothesis((*self.tokens, token), log_p, self.met)
        if self.begun is not None and self.begun[1][0] == token:
            word, left = self.begun[0], self.begun[1][1:]
            return grown._finish(word) if not left else grown._replace(begun=(word, left))
        for word, left in self._beginnings(words):
            if left[0] == token:
                return grown._finish(word) if len(left) == 1 else grown._replace(begun=(word, left[1:]))
        return grown

    def _finish(self, word: int) -> Hypothesis:
        return self._replace(met=self.met | {word}, closing=True)

    def _beginnings(self, words: Sequence[Word]) -> list[tuple[int, tuple[int, ...]]]:
        missing = [(number, word) for number, word in enumerate(words) if number not in self.met]
        return [(number, spelling) for number, word in missing for spelling in word.spellings]

    def towards_keywords(self, words: Sequence[Word]) -> set[int]:
        """Tokens that begin or go on with a keyword."""
        if self.begun is not None:
            return {self.begun[1][0]}
        return {spelling[0] for _, spelling in self._beginnings(words)}

    def needs(self, words: Sequence[Word]) -> int:
        """How many tokens of keywords are still to be written."""
        begun, left = self.begun or (-1, ())
        missing = (word for number, word in enumerate(words) if number not in self.met and number != begun)
        return len(left) + sum(len(word.spellings[0]) for word in missing)


class Search:
    """The beam of one request."""

    def __init__(self, request: Request, words: Sequence[Word], beams: int) -> None:
        self.length = request.length
        self.words = words
        self.beams = beams
        self.total = Hypothesis().needs(words)
        self.hypotheses = [Hypothesis()]

    def step(self, log_p: Tensor, starts_word: Tensor) -> list[int]:
        """Grow every hypothesis by one token; returns which row each of the new ones grew from."""
        closing = torch.tensor([item.closing for item in self.hypotheses], device=log_p.device)
        log_p = log_p.masked_fill(closing[:, None] & ~starts_word, -torch.inf)
        scores = log_p + log_p.new_tensor([item.log_p for item in self.hypotheses])[:, None]
        grown = [
            (row, self.hypotheses[row].then(token, score, self.words))
            for row, token, score in self._candidates(scores)
            if score > -torch.inf
        ]
        room = self.length - len(self.hypotheses[0].tokens) - 1
        fitting = [(row, item) for row, item in grown if item.needs(self.words) <= room] or grown
        chosen = self._allocate(fitting)
        self.hypotheses = [item for _, item in chosen]
        return [row for row, _ in chosen]

    def _candidates(self, scores: Tensor) -> list[tuple[int, int, float]]:
        """The best of all, the best of each hypothesis, and every step towards a keyword."""
        places = {(row, int(scores[row].argmax())) for row in range(len(scores))}
        best = scores.flatten().topk(min(self.beams, scores.numel())).indices.tolist()
        places |= {divmod(place, scores.shape[1]) for place in best}
        for row, item in enumerate(self.hypotheses):
            places |= {(row, token) for token in item.towards_keywords(self.words)}
        ordered = sorted(places)
        found = scores[[row for row, _ in ordered], [token for _, token in ordered]].tolist()
        return [(row, token, score) for (row, token), score in zip(ordered, found, strict=True)]

    def _allocate(self, grown: list[tuple[int, Hypothesis]]) -> list[tuple[int, Hypothesis]]:
        """Equal shares of the beam for each number of keyword tokens; what a bank cannot fill goes to the fullest."""
        banks: dict[int, list[tuple[int, Hypothesis]]] = {}
        for row, item in sorted(grown, key=lambda pair: -pair[1].log_p):
            banks.setdefault(item.needs(self.words), []).append((row, item))
        share = self.beams // (self.total + 1)
        chosen = [pair for bank in banks.values() for pair in bank[:share]]
        rest = [pair for need in sorted(banks) for pair in banks[need][share:]]
        return chosen + rest[: self.beams - len(chosen)]

    def ranked(self) -> list[Hypothesis]:
        """Those with the most keywords first, then the likeliest."""
        return sorted(self.hypotheses, key=lambda item: (item.needs(self.words), -item.log_p))


class BeamSearch(Baseline):
    """The likeliest text that the beam finds with all keywords of a prompt's constraints, as whole words.

    Nothing is random in it: sample number n is the n-th best of the beam.

    Args:
        beams: width of the beam; the paper tries 5 to 30.
        batch_size: requests that are searched together, each with a beam of its own.
    """

    name = "beam_search"

    def __init__(self, beams: int = 20, batch_size: int = 4) -> None:
        super().__init__(batch_size)
        if beams < 1:
            raise MucolaError(f"A beam has at least 1 hypothesis, not {beams}.")
        self.beams = beams

    def writer(self, language_model: LanguageModel) -> Write:
        def write(requests: Sequence[Request], seed: int) -> Tensor:
            for request in requests:
                if request.sample >= self.beams:
                    raise MucolaError(
                        f"A beam of {self.beams} has no sample number {request.sample}; ask for at most {self.beams} "
                        "samples of a prompt, or widen the beam."
                    )
            # The samples of one prompt come from one search.
            different = {(request.prompt, tuple(map(id, request.constraints))): request for request in requests}
            found = dict(zip(different, self._search(language_model, list(different.values())), strict=True))
            rows = []
            for request in requests:
                ranked = found[request.prompt, tuple(map(id, request.constraints))]
                rows.append(ranked[min(request.sample, len(ranked) - 1)].tokens)
            return torch.tensor(rows, device=language_model.device)

        return write

    @torch.no_grad()
    def _search(self, language_model: LanguageModel, requests: Sequence[Request]) -> list[list[Hypothesis]]:
        searches = [
            Search(request, wanted_words(request, language_model, "Beam search"), self.beams) for request in requests
        ]
        rows = Rows.of(requests, language_model)
        tokens, mask, cache = rows.tokens, rows.mask, DynamicCache()
        for _ in range(requests[0].length):
            log_p = _next_log_p(language_model, tokens, mask, cache)
            parts = log_p.split([len(search.hypotheses) for search in searches])
            grew_from: list[int] = []
            first = 0
            for search, part in zip(searches, parts, strict=True):
                grew_from += [first + row for row in search.step(part, language_model.starts_word)]
                first += len(part)
            index = torch.tensor(grew_from, device=mask.device)
            cache.batch_select_indices(index)
            tokens = torch.tensor([[item.tokens[-1]] for search in searches for item in search.hypotheses]).to(index)
            mask = torch.cat([mask[index], mask.new_ones(len(index), 1)], dim=1)
        return [search.ranked() for search in searches]


def _next_log_p(language_model: LanguageModel, tokens: Tensor, mask: Tensor, cache: DynamicCache) -> Tensor:
    """log p of every allowed token after each row: (rows, vocabulary)."""
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
    inputs: dict[str, Any] = {"input_ids": tokens, "attention_mask": mask, "position_ids": positions}
    output = language_model.model(**inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return output.logits[:, -1].float().log_softmax(dim=1).masked_fill(~language_model.table.allowed, -torch.inf)
