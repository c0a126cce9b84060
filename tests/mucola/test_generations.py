"""Generations on disk: what is written is read back, and a bad line is named."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from mucola import generations
from mucola.errors import MucolaError
from mucola.generations import Generation, Run, Writer, write_run

FULL = Generation(
    prompt_id="7",
    prompt="The book",
    sample=0,
    text=" is «good».\n",
    source="langevin",
    tokens=[3, 4],
    satisfied=True,
    verified=False,
    values={"positive": {"value": 0.1, "threshold": 0.2}},
    nll=5.5,
    steps=120,
    evaluations=80,
    restarts=1,
    seed=3,
    seconds=0.25,
    keywords=["good"],
    terms=["Buch"],
    reference="Das Buch",
    trace="trace-7-0.json",
)


def plain(prompt_id: str, sample: int, prompt: str = "p") -> Generation:
    return Generation(prompt_id, prompt, sample, f"text {sample}", "ancestral")


def line(**changes: Any) -> str:
    record = {"prompt_id": "1", "prompt": "p", "sample": 0, "text": "t", "source": "ancestral"} | changes
    return json.dumps({name: value for name, value in record.items() if value is not ...}) + "\n"


def test_every_field_comes_back(tmp_path: Path) -> None:
    run = Run(write_run(tmp_path / "mine", [FULL], {"steered": ["sst2"]}))
    assert list(run) == [[FULL]]
    assert run.name == "mine"
    assert run.info == {"steered": ["sst2"]}
    assert run.trace_path(FULL) == tmp_path / "mine" / "trace-7-0.json"
    assert {entry.name for entry in fields(Generation)} == set(generations._KINDS)


def test_ranks_are_merged_by_prompt_in_sample_order(tmp_path: Path) -> None:
    with Writer(tmp_path / "rank-0.jsonl") as first, Writer(tmp_path / "rank-1.jsonl") as second:
        first.write(plain("a", 2))
        first.write(plain("b", 0))
        second.write(plain("a", 0))
        second.write(plain("a", 1))
    run = Run(tmp_path)
    assert [[(g.prompt_id, g.sample) for g in group] for group in run] == [
        [("a", 0), ("a", 1), ("a", 2)],
        [("b", 0)],
    ]
    assert len(run) == 4


def test_the_grouped_layout_of_other_tools(tmp_path: Path) -> None:
    file = tmp_path / "gpt2.jsonl"
    file.write_text('{"prompt": {"text": "A"}, "generations": [{"text": " b"}, {"text": " c"}]}\n')
    run = Run(file)
    assert run.name == "gpt2"
    assert [[(g.prompt, g.sample, g.text, g.satisfied) for g in group] for group in run] == [
        [("A", 0, " b", None), ("A", 1, " c", None)]
    ]


def test_a_torn_last_line_is_cut_off_when_writing_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    with Writer(file) as writer:
        writer.write(plain("a", 0))
    with file.open("a") as handle:
        handle.write('{"prompt_id": "a", "sam')
    with pytest.raises(MucolaError, match=r"a\.jsonl, line 2: the line is cut off"):
        Run(file)
    with Writer(file) as writer:
        writer.write(plain("a", 1))
    assert [[g.sample for g in group] for group in Run(file)] == [[0, 1]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (line(text=...), "line 2: the field 'text' is missing"),
        (line(text=None), "line 2: the field 'text' is missing"),
        (line(sample="0"), "line 2: the field 'sample' should be int"),
        (line(sample=True), "line 2: the field 'sample' should be int"),
        (line(keywords=[1]), "line 2: the field 'keywords' should be list"),
        (line(values={"c": 1.0}), "line 2: the field 'values' should be"),
        (line(keyword=["a"]), "line 2: There is no field named 'keyword'; did you mean 'keywords'"),
        (line(), "line 2: sample 0 of prompt '1' is there already, at .*line 1"),
        (line(sample=1, prompt="q"), "line 2: prompt '1' has another text than at .*line 1"),
        (line(sample=1, nll=float("nan")), "line 2: not valid JSON .NaN is not a number"),
        ("[1]\n", "line 2: expected a JSON object, found list"),
        ("{oops}\n", "line 2: not valid JSON"),
        ('{"prompt": {"text": "A"}, "generations": []}\n', "line 2: the prompt has no samples"),
        ('{"prompt": {}, "generations": [{"text": "b"}]}\n', "line 2: the field 'prompt' should be"),
        ('{"prompt": {"text": "A"}, "generations": [{}]}\n', "line 2: sample 0 has no 'text'"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(line() + content)
    with pytest.raises(MucolaError, match=message):
        Run(file)


def test_missing_and_empty_runs(tmp_path: Path) -> None:
    with pytest.raises(MucolaError, match="does not exist"):
        Run(tmp_path / "none")
    with pytest.raises(MucolaError, match=r"no \*\.jsonl"):
        Run(tmp_path)
    (tmp_path / "a.jsonl").write_text("\n")
    with pytest.raises(MucolaError, match="holds no generations"):
        Run(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(MucolaError, match=r"run\.json is not valid JSON"):
        Run(tmp_path)
