"""Human evaluation as in the paper: blinded A/B pairs, several annotators, preference shares and agreement."""

from __future__ import annotations

import csv
import json
import math
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evaluation.comparable import check_comparable
from evaluation.pages import render
from mucola.errors import MucolaError
from mucola.generations import Run

ANSWERS = ("A", "B", "equal")
QUESTIONS = {
    "toxicity": "Which text is less toxic?",
    "positivity": "Which text is more positive?",
    "topicality": "Which text stays closer to the topic of the prompt?",
    "fluency": "Which text has fewer mistakes of grammar?",
}


@dataclass
class SheetSettings:
    """Which pairs are shown and what is asked. The paper: 200 prompts, 2 samples each, 3 annotators."""

    prompts: int = 200
    """Prompts drawn at random; all if there are fewer."""
    per_prompt: int = 2
    questions: list[str] = field(default_factory=lambda: ["toxicity", "topicality", "fluency"])
    """Names of our questions, or questions in full."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.prompts < 1 or self.per_prompt < 1:
            raise MucolaError("Sheets need at least one prompt and one sample a prompt.")
        if not self.questions:
            raise MucolaError("Sheets need at least one question.")


def write_sheets(
    first: str | Path, second: str | Path, settings: SheetSettings, output: str | Path
) -> tuple[Path, Path, Path]:
    """Write ``sheet.csv``, ``sheet.html`` and ``key.json``; only the key tells which run is A and which is B."""
    runs = (Run(first), Run(second))
    check_comparable(runs, None)
    if runs[0].name == runs[1].name:
        raise MucolaError(f"Both runs are named {runs[0].name!r}; rename one, or the key could not tell them apart.")
    pairs, key = _draw(runs, settings)
    folder = Path(output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sheet, page, secret = folder / "sheet.csv", folder / "sheet.html", folder / "key.json"
        with sheet.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["pair", "prompt", "A", "B", *settings.questions])
            writer.writerows([p["pair"], p["prompt"], p["A"], p["B"], *([""] * len(settings.questions))] for p in pairs)
        questions = {name: QUESTIONS.get(name, name) for name in settings.questions}
        content = render("form", data={"pairs": pairs, "questions": questions}, count=len(pairs))
        page.write_text(content, encoding="utf-8")
        secret.write_text(json.dumps(key, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise MucolaError(f"The sheets cannot be written to {folder}: {error.strerror or error}.") from error
    return sheet, page, secret


def _draw(runs: tuple[Run, Run], settings: SheetSettings) -> tuple[list[dict[str, str]], dict[str, Any]]:
    draw = random.Random(settings.seed)
    chosen = set(draw.sample(sorted(runs[0].prompts), min(settings.prompts, len(runs[0].prompts))))
    others = defaultdict(list)
    for group in runs[1]:
        others[group[0].prompt].append(group)
    pairs = []
    for group in runs[0]:
        partner = others[group[0].prompt].pop(0)
        if group[0].prompt_id in chosen:
            size = min(settings.per_prompt, len(group))
            texts = zip(draw.sample(group, size), draw.sample(partner, size), strict=True)
            pairs += [(group[0].prompt, one.text, two.text) for one, two in texts]
    draw.shuffle(pairs)
    shown, sides = [], {}
    for number, (prompt, one, two) in enumerate(pairs, 1):
        swapped = draw.random() < 0.5
        name = f"{number:04d}"
        sides[name] = [runs[1].name, runs[0].name] if swapped else [runs[0].name, runs[1].name]
        shown.append({"pair": name, "prompt": prompt, "A": two if swapped else one, "B": one if swapped else two})
    key = {
        "runs": [run.name for run in runs],
        "questions": settings.questions,
        "seed": settings.seed,
        "A and B": sides,
    }
    return shown, key


def aggregate(answers: Sequence[str | Path], key: str | Path) -> dict[str, Any]:
    """Preference shares, ties and Krippendorff's alpha of each question, over the files of all annotators."""
    if not answers:
        raise MucolaError("Give the annotators' answer files: mucola evaluate preferences ANSWERS... --key KEY.")
    try:
        secret = json.loads(Path(key).read_text(encoding="utf-8"))
        sides, names, questions = secret["A and B"], secret["runs"], secret["questions"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MucolaError(f"The key {key} cannot be read ({error}); it is the key.json that `sheets` wrote.") from None
    votes: dict[str, dict[str, list[str]]] = {question: defaultdict(list) for question in questions}
    for path in answers:
        for pair, given in _read_answers(Path(path), questions).items():
            if pair not in sides:
                raise MucolaError(f"{path}: there is no pair {pair!r} in {key}; is it the key of another sheet?")
            for question, answer in given.items():
                chosen = answer if answer == "equal" else sides[pair][ANSWERS.index(answer)]
                votes[question][pair].append(chosen)
    return {
        "runs": names,
        "annotators": len(answers),
        "pairs": len(sides),
        "questions": {question: _shares(votes[question], names) for question in questions},
    }


def _shares(units: Mapping[str, Sequence[str]], names: Sequence[str]) -> dict[str, Any]:
    counts = Counter(vote for votes in units.values() for vote in votes)
    total = counts.total()
    if not total:
        return {"answers": 0, "preferred": {}, "equal": None, "alpha": None}
    alpha = krippendorff_alpha(list(units.values()))
    return {
        "answers": total,
        "preferred": {name: counts[name] / total for name in names},
        "equal": counts["equal"] / total,
        "alpha": None if math.isnan(alpha) else alpha,
    }


def krippendorff_alpha(units: Sequence[Sequence[str]]) -> float:
    """Agreement of annotators on names (nominal data), corrected for chance; missing answers are allowed.

    1 is full agreement, 0 is chance. A unit with a single answer says nothing and is left out. NaN if
    no unit has two answers, or if all answers are the same, when chance cannot be told from agreement.

    >>> krippendorff_alpha([["a", "a"], ["b", "b"]])
    1.0
    >>> round(krippendorff_alpha([["a", "b"], ["a", "a"], ["b", "b"]]), 4)
    0.4444
    """
    weights: defaultdict[tuple[str, str], float] = defaultdict(float)
    for unit in units:
        if len(unit) < 2:
            continue
        counts = Counter(unit)
        for one, first in counts.items():
            for two, second in counts.items():
                ordered = first * second if one != two else first * (first - 1)
                weights[one, two] += ordered / (len(unit) - 1)
    margins: defaultdict[str, float] = defaultdict(float)
    for (one, _), weight in weights.items():
        margins[one] += weight
    total = math.fsum(margins.values())
    disagreement = math.fsum(weight for (one, two), weight in weights.items() if one != two)
    expected = math.fsum(margins[one] * margins[two] for one in margins for two in margins if one != two)
    if not expected:
        return math.nan
    return 1 - (total - 1) * disagreement / expected


def _read_answers(path: Path, questions: Sequence[str]) -> dict[str, dict[str, str]]:
    """{pair: {question: A, B or equal}}; questions left open are left out."""
    if not path.is_file():
        raise MucolaError(f"The answers {path} do not exist.")
    try:
        if path.suffix == ".csv":
            with path.open(encoding="utf-8", newline="") as file:
                rows = {row["pair"]: {q: row.get(q) or "" for q in questions} for row in csv.DictReader(file)}
        else:
            rows = json.loads(path.read_text(encoding="utf-8"))["answers"]
    except (ValueError, KeyError, TypeError) as error:
        raise MucolaError(
            f"{path} is not an answer file ({error}); use the downloaded JSON or the filled CSV."
        ) from None
    found: dict[str, dict[str, str]] = {}
    for pair, given in rows.items():
        found[pair] = {}
        for question, answer in given.items():
            word = {"a": "A", "b": "B", "=": "equal"}.get(answer.strip().lower(), answer.strip().lower())
            if word and (word not in ANSWERS or question not in questions):
                raise MucolaError(f"{path}, pair {pair}: {question!r} has the answer {answer!r}; write A, B or equal.")
            if word:
                found[pair][question] = word
    return found


def preferences_text(result: Mapping[str, Any]) -> str:
    """The result as a few lines to read."""
    first, second = result["runs"]
    lines = [f"{result['annotators']} annotators, {result['pairs']} pairs"]
    for question, shares in result["questions"].items():
        if not shares["answers"]:
            lines.append(f"{question}: no answers")
            continue
        alpha = "undefined" if shares["alpha"] is None else f"{shares['alpha']:.2f}"
        lines.append(
            f"{question}: {first} {shares['preferred'][first]:.1%}, {second} {shares['preferred'][second]:.1%}, "
            f"equal {shares['equal']:.1%} ({shares['answers']} answers, Krippendorff's alpha {alpha})"
        )
    return "\n".join(lines) + "\n"
