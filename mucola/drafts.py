"""Drafts: texts into which the language model writes the keywords where they suit it best.

A plain sample as good as never has four given words in it, and a chain that starts without them has to
tear a finished sentence open for each. A draft is written from left to right like a plain sample, but at
every token one of the words that are still missing may come next. The chance of that is what would spread
the words evenly over the room that is left, times how well they suit here compared with the places
before; at the end there is no choice. The best of many drafts is the sample if it satisfies everything, and
where a chain starts if it does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mucola.constraints.base import ruled_out
from mucola.constraints.keywords import Keyword
from mucola.language_model import LanguageModel, Written, nucleus_draw
from mucola.pool import Request

DRAFTS = 24
"""How many are written for one sample; they cost about as much as twenty steps of a chain."""
NUCLEUS = 0.8
"""Narrower than a plain sample's: what stands between the words should hold together."""
SWING = 5.0
"""The most that a place's suitability counts, in nats either way."""
CERTAIN = 0.95
"""The highest chance of a word at one place: better ones may come."""

Spelling = tuple[int, ...]


def wants_words(request: Request) -> bool:
    """Whether a draft is a better start than a plain sample."""
    return any(isinstance(item, Keyword) for item in request.constraints)


def draft(language_model: LanguageModel, requests: Sequence[Request], uniforms: Sequence[Tensor]) -> Written:
    """One draft for each request, all of one length; ``uniforms`` are (length, 2) each: (rows, length)."""
    drafts = [
        Draft(_words(request), request.length, each[:, 1]) for request, each in zip(requests, uniforms, strict=True)
    ]
    free = torch.stack([each[:, 0] for each in uniforms]).to(language_model.device)
    banned = [ruled_out(request.constraints) for request in requests]

    def write(logits: Tensor, position: int) -> Tensor:
        for row, ids in enumerate(banned):
            if ids is not None:
                logits[row, ids] = -torch.inf
        ended = torch.tensor([draft.ended for draft in drafts], device=logits.device)
        logits = logits.masked_fill(ended[:, None] & ~language_model.starts_word, -torch.inf)
        drawn = nucleus_draw(logits, free[:, position], NUCLEUS).tolist()
        log_probabilities = logits.log_softmax(dim=1)
        chosen = [draft.choose(row, token) for draft, row, token in zip(drafts, log_probabilities, drawn, strict=True)]
        return torch.tensor(chosen, device=logits.device)

    prefixes = [language_model.prefix(request.prompt.tokens) for request in requests]
    return language_model.written(prefixes, free.shape[1], write)


class Draft:
    """One text in the making: which words are missing, and how much room is left."""

    def __init__(self, words: Sequence[Sequence[Spelling]], length: int, uniforms: Tensor) -> None:
        self.missing = list(words)
        self.left = length
        self._uniforms = uniforms.tolist()
        self._rest: Spelling = ()
        """Of the word that is being written."""
        self._in_word = False
        self._suited: list[float] = []
        """How well the missing words suited each place so far."""

    @property
    def ended(self) -> bool:
        """Whether a keyword ends here, so that the next token must not go on with it."""
        return self._in_word and not self._rest

    def choose(self, log_probabilities: Tensor, drawn: int) -> int:
        """The next token: of a keyword, or the one that was ``drawn``."""
        if self._rest:
            token, *rest = self._rest
        else:
            options = self._options()
            word = self._word_here(options, log_probabilities) or next((s for s in options if s[0] == drawn), None)
            self._in_word = word is not None
            self.missing = [spellings for spellings in self.missing if word not in spellings]
            token, *rest = word or (drawn,)
        self._rest = tuple(rest)
        self.left -= 1
        return token

    def _options(self) -> list[Spelling]:
        """Spellings of missing words that leave room for the others."""
        spare = self.left - self._needed()
        return [s for spellings in self.missing for s in spellings if len(s) <= min(map(len, spellings)) + spare]

    def _needed(self) -> int:
        return sum(min(map(len, spellings)) for spellings in self.missing)

    def _word_here(self, options: Sequence[Spelling], log_probabilities: Tensor) -> Spelling | None:
        """A word, if it shall come now."""
        if not options:
            return None
        each = log_probabilities[[spelling[0] for spelling in options]].clamp(min=-50.0)
        suits = float(each.logsumexp(dim=0))
        usual = sum(self._suited) / len(self._suited) if self._suited else suits
        self._suited.append(suits)
        needed, uniform = self._needed(), self._uniforms[-self.left]
        chance = min(CERTAIN, needed / self.left * math.exp(max(-SWING, min(SWING, suits - usual))))
        if needed >= self.left:
            chance = 1.0
        if uniform >= chance:
            return None
        # Below the chance, the uniform number is evenly spread and picks the word by its probability.
        picked = int((each.softmax(dim=0).cumsum(dim=0) <= uniform / chance).sum())
        return options[min(picked, len(options) - 1)]


def _words(request: Request) -> list[list[Spelling]]:
    keywords = [item for item in request.constraints if isinstance(item, Keyword)]
    return [[tuple(spelling.tolist()) for spelling in keyword.spellings] for keyword in keywords]
