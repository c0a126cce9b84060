from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from decoding.prompts import Entries, PromptFile
from mucola.errors import MucolaError

DATA = Path(__file__).parents[3] / "shared" / "data"


def read(path: Path, text: str, **options: object) -> Entries:
    path.write_text(text, encoding="utf-8")
    return PromptFile(str(path), **options).read()  # type: ignore[arg-type]


def test_plain_lines_are_prompts_as_they_stand(tmp_path: Path) -> None:
    found = read(tmp_path / "p.txt", "The book\n\n  An “old” road \r\nThe book\n")
    assert [entry.text for entry in found.entries] == ["The book", "  An “old” road ", "The book"]
    assert len({entry.id for entry in found.entries}) == 3, "a repeated prompt is a prompt of its own"


def test_ids_do_not_depend_on_the_place_in_the_file(tmp_path: Path) -> None:
    one = read(tmp_path / "a.txt", "The book\nThe lake\n").entries
    other = read(tmp_path / "b.jsonl", '{"prompt": {"text": "The lake"}}\n{"prompt": "The book"}\n').entries
    assert {entry.text: entry.id for entry in one} == {entry.text: entry.id for entry in other}


def test_json_brings_words_ids_and_references(tmp_path: Path) -> None:
    record = {"prompt": "In the", "id": 7, "keywords": ["sea", "sea"], "terms": ["Handel"], "reference": "r"}
    (entry,) = read(tmp_path / "p.jsonl", json.dumps(record)).entries
    assert (entry.id, entry.text, entry.keywords, entry.terms, entry.reference) == (
        "7",
        "In the",
        ("sea",),
        ("Handel",),
        "r",
    )
    assert [str(item) for item in entry.constraints()] == ['keyword("sea")', 'keyword("Handel")']


def test_keyword_sets_have_no_prompt_but_may_be_given_one(tmp_path: Path) -> None:
    (concepts,) = read(tmp_path / "c.jsonl", '{"concept_set": "piece#saw#saw#wood"}\n').entries
    assert (concepts.text, concepts.keywords) == ("", ("piece", "saw", "wood"))
    (story,) = read(tmp_path / "s.txt", "Kate, needed , home\n", format="storylines", prefix="Once").entries
    assert (story.text, story.keywords) == ("Once", ("Kate", "needed", "home"))


def toxicity_file(path: Path) -> Path:
    rows = [{"prompt": {"text": f"Prompt {i}", "toxicity": i / 10 if i else None}} for i in range(10)]
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def test_real_toxicity_prompts_are_selected_by_toxicity(tmp_path: Path) -> None:
    file = str(toxicity_file(tmp_path / "rtp.jsonl.gz"))

    def texts(**options: object) -> list[str]:
        return [entry.text[-1] for entry in PromptFile(file, **options).read().entries]  # type: ignore[arg-type]

    assert texts(max_toxicity=0.5) == ["1", "2", "3", "4"]
    assert texts(min_toxicity=0.5) == ["5", "6", "7", "8", "9"]
    assert texts(max_toxicity=0.5, first=2) == ["1", "2"]
    assert len(texts(subset=4)) == 4
    assert texts(subset=4) == texts(subset=4)
    assert set(texts(subset=3)) < set(texts(subset=4))


def test_a_dataset_is_read_like_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of the `datasets` library stands in for the hub, which not every machine can reach."""
    (tmp_path / "allenai" / "prompts").mkdir(parents=True)
    rows = [{"prompt": {"text": "The man", "toxicity": 0.1}}, {"prompt": {"text": "The fool", "toxicity": 0.9}}]
    (tmp_path / "allenai" / "prompts" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    found = PromptFile("allenai/prompts", max_toxicity=0.5).read()
    assert [entry.text for entry in found.entries] == ["The man"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": ', "not valid JSON"),
        ('["The book"]', "JSON object"),
        ('{"text": "The book"}', 'no "prompt"'),
        ('{"prompt": {"text": 5}}', 'no "prompt"'),
        ('{"prompt": "a", "keywords": "sea"}', "list of words"),
        ('{"concept_set": "dog##cat"}', "empty"),
        ('{"prompt": "again", "id": "x"}', "used before"),
    ],
)
def test_a_wrong_line_is_named_or_counted(tmp_path: Path, line: str, message: str) -> None:
    text = f'{{"prompt": "fine", "id": "x"}}\n{line}\n{{"prompt": "fine too"}}\n'
    with pytest.raises(MucolaError, match=message) as caught:
        read(tmp_path / "p.jsonl", text)
    assert "p.jsonl, line 2" in str(caught.value)
    found = read(tmp_path / "p.jsonl", text, skip_bad=True)
    assert [entry.text for entry in found.entries] == ["fine", "fine too"]
    assert len(found.skipped) == 1
    assert "line 2" in found.skipped[0]


def test_text_that_is_not_utf8_is_a_wrong_line(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_bytes(b"fine\n\xff\xfe\n")
    with pytest.raises(MucolaError, match=r"line 2.*utf-8"):
        PromptFile(str(tmp_path / "p.txt")).read()


def test_no_prompts_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MucolaError, match="no prompts in"):
        read(tmp_path / "empty.txt", "\n\n")
    with pytest.raises(MucolaError, match="No such file"):
        PromptFile(str(tmp_path / "nowhere.txt")).read()


@pytest.mark.skipif(not DATA.exists(), reason="the shared data is not here")
def test_the_papers_prompt_files() -> None:
    def count(file: str, **options: object) -> int:
        return len(PromptFile(str(DATA / file), **options).read().entries)  # type: ignore[arg-type]

    assert count("prompts/detox_prompts_500.txt") == 500
    assert count("prompts/pplm_prompts.jsonl") == 15
    assert count("keywords/commongen.jsonl") == 1000
    assert count("keywords/roc_storylines.txt", format="storylines") == 20
    assert count("toxicity/real_toxicity_prompts_sample.jsonl.gz") == 800
    assert count("toxicity/real_toxicity_prompts_sample.jsonl.gz", max_toxicity=0.5) == 392
