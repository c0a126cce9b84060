"""Words in texts: how the tokenizer writes them, and whether a text contains them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from mucola.language_model import LanguageModel


@lru_cache(maxsize=4096)
def whole_word(word: str) -> re.Pattern[str]:
    """Matches ``word`` as a word of its own, whatever its case; marks (newline, "--") match anywhere.

    >>> bool(whole_word("beach").search("a Beach.")), bool(whole_word("beach").search("beaches"))
    (True, False)
    """
    before = r"(?<!\w)" if re.match(r"\w", word) else ""
    after = r"(?!\w)" if re.search(r"\w$", word) else ""
    return re.compile(before + re.escape(word) + after, re.IGNORECASE)


def appears(words: Iterable[str], prompt: str, text: str) -> bool:
    """Whether the continuation ``text`` has any of ``words``; what the prompt says does not count.

    >>> appears(["side"], "The sea", "side is far"), appears(["sea"], "The sea", " is far")
    (False, False)
    """
    # The prompt stays in sight, so that going on with its last word does not make a new one.
    return any(whole_word(word).search(prompt + text, len(prompt)) for word in words)


def spelling(word: str, language_model: LanguageModel) -> tuple[int, ...]:
    """The tokens of ``word`` as it stands inside a sentence, after a space; empty if they cannot be written."""
    tokenizer: Any = language_model.tokenizer
    tokens = tuple(tokenizer(f"a {word}", add_special_tokens=False).input_ids)
    bare = tuple(tokenizer("a", add_special_tokens=False).input_ids)
    tokens = tokens[len(bare) :]
    writable = all(bool(language_model.table.allowed[token]) for token in tokens)
    back = tokenizer.decode([*bare, *tokens])
    return tokens if writable and back.endswith(word) else ()
