"""One notation for constraints: what one writes in Python is what stands in YAML and on the command line.

classifier("positive") > 0.9        classifier("toxic") < 0.01
keyword("beach")                    keyword("run", "runs", "ran")
exclude("war", "\\n")                no_repetition(3)
prompt("This is amazing", "This is terrible")
generative("path/to/gedi", "positive") > 0.9
contrast("path/to/positive-lm", "path/to/negative-lm") > 0.999
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any

from mucola.constraints.base import Constraint
from mucola.constraints.classifiers import Probability, classifier, most_likely
from mucola.constraints.contrasts import Contrast, contrast, generative, prompt
from mucola.constraints.exclusions import Exclude, exclude, no_repetition
from mucola.constraints.keywords import Keyword, keyword
from mucola.constraints.words import appears
from mucola.errors import MucolaError
from mucola.names import unknown

KINDS: dict[str, Callable[..., Any]] = {
    kind.__name__: kind
    for kind in (classifier, most_likely, keyword, exclude, no_repetition, prompt, generative, contrast)
}


def parse(text: str) -> list[Constraint]:
    """Read a constraint in the notation above; no code is run, only these names and literals are known.

    >>> parse('keyword("beach")')
    [keyword("beach")]
    >>> parse('classifier("toxic") < 0.01')
    [toxic < 0.01]
    """
    try:
        expression = ast.parse(text.strip(), mode="eval").body
        made = _build(expression)
    except (SyntaxError, ValueError) as error:
        reason = f" ({error.msg})" if isinstance(error, SyntaxError) else ""
        raise MucolaError(f'{text!r} is not a constraint{reason}; write for example keyword("beach").') from None
    except TypeError as error:
        raise MucolaError(f"{text!r} is not complete: {error}.") from None
    if isinstance(made, Probability):
        raise MucolaError(f"{text!r} lacks a threshold; write for example {text} > 0.9.")
    return made if isinstance(made, list) else [made]


def parse_all(constraints: Iterable[str | Constraint]) -> list[Constraint]:
    """Constraints given as objects or in the notation, checked against one another."""
    made: list[Constraint] = []
    for item in constraints:
        made += [item] if isinstance(item, Constraint) else parse(item)
    _refuse_contradictions(made)
    return made


def _build(node: ast.expr) -> Any:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        probability, threshold = _build(node.left), ast.literal_eval(node.comparators[0])
        if not isinstance(probability, Probability | Contrast):
            raise MucolaError(f"Only a probability is compared with a threshold, not {ast.unparse(node.left)}.")
        if isinstance(node.ops[0], ast.Gt | ast.GtE):
            return probability > threshold
        if isinstance(node.ops[0], ast.Lt | ast.LtE):
            if isinstance(probability, Contrast):
                raise MucolaError(f"{ast.unparse(node)}: name the wanted side first and write > instead.")
            return probability < threshold
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id not in KINDS:
            raise unknown("kind of constraint", node.func.id, KINDS)
        arguments = [ast.literal_eval(argument) for argument in node.args]
        options = {option.arg: ast.literal_eval(option.value) for option in node.keywords if option.arg}
        return KINDS[node.func.id](*arguments, **options)
    raise ValueError


def _refuse_contradictions(constraints: list[Constraint]) -> None:
    excluded = [word for item in constraints if isinstance(item, Exclude) for word in item.words]
    for item in constraints:
        if isinstance(item, Keyword) and all(appears(excluded, "", form) for form in item.forms):
            raise MucolaError(f"{item} cannot hold together with the exclusion of its own words; drop one of the two.")
