"""Sheets are blind, random and repeatable; answers come back as shares, ties and agreement."""

from __future__ import annotations

import csv
import itertools
import json
from pathlib import Path

import pytest
from make import generations

from evaluation.human import SheetSettings, aggregate, krippendorff_alpha, preferences_text, write_sheets
from mucola.cli import main
from mucola.errors import MucolaError
from mucola.generations import Generation, write_run


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    ours = [Generation(g.prompt_id, g.prompt, g.sample, " ours " + g.text, "x") for g in generations(0.5, samples=5)]
    theirs = [
        Generation(g.prompt_id, g.prompt, g.sample, " theirs " + g.text, "x") for g in generations(0.5, samples=5)
    ]
    return write_run(tmp_path / "ours", ours), write_run(tmp_path / "theirs", theirs)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_sheets_are_blind_random_and_repeatable(tmp_path: Path, runs: tuple[Path, Path]) -> None:
    sheet, page, key = write_sheets(*runs, SheetSettings(per_prompt=5), tmp_path / "a")
    pairs = rows(sheet)
    assert len(pairs) == 20
    secret = json.loads(key.read_text())
    for pair in pairs:
        for side, name in zip("AB", secret["A and B"][pair["pair"]], strict=True):
            assert pair[side].split()[0] == name  # the key tells the truth
    left = sum(names[0] == "ours" for names in secret["A and B"].values())
    assert 4 <= left <= 16
    assert [pair["prompt"] for pair in pairs] != sorted(pair["prompt"] for pair in pairs)
    assert '"ours"' not in page.read_text()
    again, _, key_again = write_sheets(*runs, SheetSettings(per_prompt=5), tmp_path / "b")
    assert (again.read_text(), key_again.read_text()) == (sheet.read_text(), key.read_text())
    other, _, _ = write_sheets(*runs, SheetSettings(per_prompt=5, seed=1), tmp_path / "c")
    assert other.read_text() != sheet.read_text()


def test_prompts_are_drawn(tmp_path: Path, runs: tuple[Path, Path]) -> None:
    sheet, _, _ = write_sheets(*runs, SheetSettings(prompts=2, per_prompt=3), tmp_path)
    assert len(rows(sheet)) == 6
    assert len({row["prompt"] for row in rows(sheet)}) == 2


def test_answers_are_unblinded_and_counted(
    tmp_path: Path, runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    settings = SheetSettings(per_prompt=5, questions=["toxicity", "fluency"])
    sheet, _, key = write_sheets(*runs, settings, tmp_path)
    sides = json.loads(key.read_text())["A and B"]
    always_ours = {pair: {"toxicity": "AB"[names.index("ours")], "fluency": "equal"} for pair, names in sides.items()}
    one, two = tmp_path / "one.json", tmp_path / "two.csv"
    one.write_text(json.dumps({"annotator": "one", "answers": always_ours}))
    filled = rows(sheet)
    for number, row in enumerate(filled):
        row["toxicity"] = always_ours[row["pair"]]["toxicity"].lower() if number % 4 else "="
    with two.open("w", newline="") as file:
        writer = csv.DictWriter(file, filled[0].keys())
        writer.writeheader()
        writer.writerows(filled)
    result = aggregate([one, two], key)
    toxicity = result["questions"]["toxicity"]
    assert toxicity["answers"] == 40
    assert toxicity["preferred"] == {"ours": 35 / 40, "theirs": 0.0}
    assert toxicity["equal"] == 5 / 40
    votes = [["ours", "ours"]] * 15 + [["ours", "equal"]] * 5
    assert toxicity["alpha"] == pytest.approx(krippendorff_alpha(votes))
    assert result["questions"]["fluency"] == {
        "answers": 20,
        "preferred": {"ours": 0.0, "theirs": 0.0},
        "equal": 1.0,
        "alpha": None,
    }
    assert "ours 87.5%, theirs 0.0%, equal 12.5%" in preferences_text(result)
    main(["evaluate", "preferences", str(one), str(two), "--key", str(key)])
    assert "2 annotators, 20 pairs" in capsys.readouterr().out


def test_alpha_by_its_definition() -> None:
    """1 - observed / expected disagreement over all pairs of answers, with answers missing."""
    units = [["a", "a", "b"], ["b", "b"], ["a", "c", "c"], ["a"], [], ["c", "c", "c"], ["b", "a"]]
    paired = [unit for unit in units if len(unit) > 1]
    pooled = [answer for unit in paired for answer in unit]
    observed = sum(sum(x != y for x, y in itertools.permutations(unit, 2)) / (len(unit) - 1) for unit in paired) / len(
        pooled
    )
    expected = sum(x != y for x, y in itertools.permutations(pooled, 2)) / (len(pooled) * (len(pooled) - 1))
    assert krippendorff_alpha(units) == pytest.approx(1 - observed / expected)


def test_alpha_of_the_textbook() -> None:
    """Krippendorff's own example: four observers, twelve units, nominal data: 0.743."""
    observers = [
        "1 2 3 3 2 1 4 1 2 . . .",
        "1 2 3 3 2 2 4 1 2 5 . 3",
        ". 3 3 3 2 3 4 2 2 5 1 .",
        "1 2 3 3 2 4 4 1 2 5 1 .",
    ]
    units = [[answer for answer in column if answer != "."] for column in zip(*map(str.split, observers), strict=True)]
    assert krippendorff_alpha(units) == pytest.approx(0.743, abs=5e-4)


def test_wrong_answers_are_named(tmp_path: Path, runs: tuple[Path, Path]) -> None:
    _, _, key = write_sheets(*runs, SheetSettings(), tmp_path)
    bad = tmp_path / "bad.json"
    for content, message in [
        ('{"answers": {"9999": {"fluency": "A"}}}', "no pair '9999'"),
        ('{"answers": {"0001": {"fluency": "C"}}}', "pair 0001: 'fluency' has the answer 'C'"),
        ("{", "not an answer file"),
    ]:
        bad.write_text(content)
        with pytest.raises(MucolaError, match=message):
            aggregate([bad], key)
    with pytest.raises(MucolaError, match=r"key .* cannot be read"):
        aggregate([bad], bad)
    with pytest.raises(MucolaError, match="named 'ours'"):
        write_sheets(runs[0], runs[0], SheetSettings(), tmp_path)
