"""Looking names up, with a helpful answer when one is mistyped."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from mucola.errors import MucolaError


def unknown(kind: str, name: str, known: Iterable[str]) -> MucolaError:
    """The error for a name that is not among ``known``.

    >>> str(unknown("model", "smolm2", ["smollm2-135m"]))
    "There is no model named 'smolm2'; did you mean 'smollm2-135m'?"
    >>> str(unknown("suite", "x", ["toxicity", "keywords"]))
    "There is no suite named 'x'; the known ones are keywords, toxicity."
    """
    known = sorted(known)
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"the known ones are {', '.join(known)}."
    return MucolaError(f"There is no {kind} named {name!r}; {hint}")
