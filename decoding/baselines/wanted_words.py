"""The keywords of a request, as the left-to-right methods that write them see them."""

from __future__ import annotations

from typing import NamedTuple

from mucola.constraints.keywords import Keyword
from mucola.constraints.words import spelling
from mucola.errors import MucolaError
from mucola.language_model import LanguageModel
from mucola.pool import Request


class Word(NamedTuple):
    """A keyword: any of its forms will do, and each is written in one way."""

    forms: tuple[str, ...]
    spellings: tuple[tuple[int, ...], ...]
    """The tokens of each form inside a sentence, the shortest first."""


def wanted_words(request: Request, language_model: LanguageModel, method: str) -> list[Word]:
    """The keywords among a request's constraints; a request without any is not for ``method``."""
    keywords = [item for item in request.constraints if isinstance(item, Keyword)]
    if not keywords:
        raise MucolaError(
            f"{method} writes keywords and prompt {request.prompt.id!r} has none; add a constraint such as "
            'keyword("beach"), or use another method.'
        )
    return [
        Word(item.forms, tuple(sorted((spelling(form, language_model) for form in item.forms), key=len)))
        for item in keywords
    ]
