"""Experiments: their commands, resuming, errors, and a quick variant of each on the real model."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import results
from decoding.command import arguments_parser
from mucola.commands import experiment
from mucola.commands.experiment import CONFIGS, Experiment, plan
from mucola.commands.sample import written_constraints
from mucola.constraints import parse_all
from mucola.errors import MucolaError

ROOT = Path(__file__).parents[2]
NAMES = sorted(file.stem for file in (ROOT / CONFIGS).glob("*.yaml"))


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def mucola(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mucola", "experiment", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


@pytest.fixture(scope="module")
def parser() -> Any:
    return arguments_parser()


@pytest.mark.parametrize("name", NAMES)
def test_every_row_is_a_command_that_parses(name: str, parser: Any) -> None:
    loaded = Experiment.load(name)
    for quick in (False, True):
        models, rows, reports = plan(loaded, name, quick=quick)
        assert len(rows) == len(loaded.rows) * len(reports)
        assert len({step.target for step in rows}) == len(rows)
        assert len(models) == len(loaded.models), "a model that no row needs"
        for step in rows:
            options = parser.parse_args(step.arguments[1:])
            assert parse_all(written_constraints(options)) or name == "keywords" or step.target.endswith("/none")


def test_only_what_a_row_needs_is_trained() -> None:
    models, rows, reports = plan(Experiment.load("sentiment"), "sentiment", ["gedi-sst2"], "20-negative")
    assert [step.target for step in models] == ["runs/sst2-generative"]
    (row,) = rows
    assert shlex.join(row.arguments).endswith("--output runs/experiments/sentiment/20-negative/gedi-sst2")
    assert "--length 20" in shlex.join(row.arguments)
    assert reports[0].target == "out/sentiment/20-negative"


def test_what_comes_with_a_table_is_filled_in() -> None:
    _, rows, _ = plan(Experiment.load("sentiment"), "sentiment", ["mucola-dexperts-sst2"], "12-negative")
    written = """contrast("runs/sst2-negative-lm/export", "runs/sst2-positive-lm/export") > 0.999"""
    assert written in rows[0].arguments
    assert "-n 4 " in shlex.join(rows[0].arguments)


def test_a_table_may_differ_from_the_others() -> None:
    _, rows, _ = plan(Experiment.load("sentiment"), "sentiment", ["base"], "20-positive")
    assert "-n 10 " in shlex.join(rows[0].arguments)
    with pytest.raises(MucolaError, match="did you mean '20-positive'"):
        replace(Experiment.load("sentiment"), tables={"20-positiv": {}}).fillings()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["toxicty"], "did you mean 'toxicity'"),
        (["toxicity", "--only", "[gedy]"], "did you mean 'gedi'"),
        (["sentiment", "--table", "20-positiv"], "did you mean '20-positive'"),
        (["toxicity", "--jobs", "0"], "at least 1"),
    ],
)
def test_mistakes_are_told(arguments: list[str], message: str) -> None:
    done = mucola(*arguments)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.fixture
def small(tmp_path: Path, tiny: Path) -> Path:
    """Two rows of a tiny model."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("The dog\nThe sea\n", encoding="utf-8")
    file = tmp_path / "small.yaml"
    text = f"""
        title: Two rows
        decode: --prompts.file {prompts} --model {tiny} -n 2 --length 4
        rows:
          base: --method Nucleus
          words: --keyword dog
        evaluate: --suite toxicity --grammar none --judge none
        """
    file.write_text(text, encoding="utf-8")
    return file


def test_a_second_run_repeats_only_the_report(small: Path, tmp_path: Path) -> None:
    first = mucola(str(small), "--folder", str(tmp_path))
    assert first.returncode == 0, first.stderr
    assert (tmp_path / "out/small/report.html").is_file()
    assert "base" in first.stdout
    assert "words" in first.stdout
    row = tmp_path / "runs/experiments/small/words/rank-0.jsonl"
    before = row.read_bytes()
    again = mucola(str(small), "--folder", str(tmp_path))
    assert again.returncode == 0
    assert "words" not in again.stdout
    assert row.read_bytes() == before
    assert len([json.loads(line) for line in before.splitlines()]) == 4


def test_another_judge_is_one_more_column(
    small: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mucola(str(small), "--folder", str(tmp_path)).returncode == 0
    again = mucola(str(small), "--folder", str(tmp_path), "--judge", str(tiny))
    assert again.returncode == 0, again.stderr
    assert "decode" not in again.stdout
    monkeypatch.setattr(results, "CONFIGS", tmp_path)
    monkeypatch.setattr(experiment, "CONFIGS", tmp_path)
    results.main(tmp_path, pages=tmp_path)
    heading = (tmp_path / "small.md").read_text(encoding="utf-8").split("| --- |")[0]
    judge = str(tiny).replace("/", "--")
    assert f"| perplexity, {judge} |" in heading
    assert "SmolLM2" not in heading, "the first report was made without a judge"


def test_a_row_whose_config_file_changed_is_not_taken_for_done(small: Path, tmp_path: Path) -> None:
    config = tmp_path / "words.yaml"
    config.write_text("keyword: [dog]\n", encoding="utf-8")
    small.write_text(small.read_text(encoding="utf-8").replace("--keyword dog", f"--config {config}"))
    assert mucola(str(small), "--folder", str(tmp_path), "--only", "[words]").returncode == 0
    config.write_text("keyword: [sea]\n", encoding="utf-8")
    done = mucola(str(small), "--folder", str(tmp_path), "--only", "[words]")
    assert done.returncode == 2
    assert "holds a run of another kind" in done.stderr


def test_a_row_that_fails_says_why(small: Path, tmp_path: Path) -> None:
    small.write_text(small.read_text(encoding="utf-8").replace("--keyword dog", "--keyword dog --length 0"))
    done = mucola(str(small), "--folder", str(tmp_path), "--jobs", "2")
    assert done.returncode == 2
    assert "small/words: The length of a sample must be at least 1" in done.stderr
    assert "small/words.log" in done.stderr


def test_after_a_row_that_failed_no_other_begins(small: Path, tmp_path: Path) -> None:
    small.write_text(small.read_text(encoding="utf-8").replace("--method Nucleus", "--method Nucleus --length 0"))
    done = mucola(str(small), "--folder", str(tmp_path))
    assert done.returncode == 2
    assert not (tmp_path / "runs/experiments/small/words.log").exists()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What experiments read, a few lines of each, written here."""
    folder = tmp_path_factory.mktemp("data")
    good = ["a warm and funny film", "i loved every minute of it", "great food and kind people", "simply wonderful"]
    bad = ["a dull and stupid film", "i hated every minute of it", "cold food and rude people", "simply terrible"]
    rows = [
        f"{text}, number {i}\t{label}" for i in range(16) for label, texts in enumerate((bad, good)) for text in texts
    ]
    for name, column in (("sst2_train", "sentence"), ("sst2_dev", "content"), ("yelp_train", "sentence")):
        with gzip.open(folder / f"{name}.tsv.gz", "wt", encoding="utf-8") as file:
            file.write("\n".join([f"{column}\tlabel", *rows]) + "\n")
    (folder / "yelp_dev.tsv.gz").write_bytes((folder / "yelp_train.tsv.gz").read_bytes())
    (folder / "detox_prompts_500.txt").write_text("The man at the door\nMy old car\nThe meeting\n", encoding="utf-8")
    prompts = [json.dumps({"prompt": {"text": text}}) for text in ("The lake", "The lamp", "The train")]
    rated = [json.dumps({"prompt": {"text": text, "toxicity": 0.9}}) for text in ("You are such a", "What a stupid")]
    with gzip.open(folder / "real_toxicity_prompts_sample.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(rated) + "\n")
    (folder / "pplm_prompts.jsonl").write_text("\n".join(prompts) + "\n", encoding="utf-8")
    sets = [json.dumps({"concept_set": words}) for words in ("dog#ball#run", "tree#bird#sing")]
    (folder / "commongen.jsonl").write_text("\n".join(sets) + "\n", encoding="utf-8")
    (folder / "roc_storylines.txt").write_text("lake, boat, rain\nschool, test, proud\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the quick variants are run: a model that one of them trained serves the others."""
    return tmp_path_factory.mktemp("quick")


@pytest.mark.real
@pytest.mark.parametrize("name", NAMES)
def test_a_quick_variant_runs_from_training_to_report(name: str, data: Path, shared: Path) -> None:
    one = {"sentiment": "20-positive"}.get(name)
    only = ["--table", one] if one else []
    environment = {"MUCOLA_DATA": str(data)}
    done = mucola(name, "--quick", "true", "--jobs", "2", "--folder", str(shared), *only, **environment)
    assert done.returncode == 0, done.stderr
    (_, _, reports) = plan(Experiment.load(name), name, table=one, quick=True)
    for report in reports:
        found = json.loads((shared / report.target / "metrics.json").read_text(encoding="utf-8"))
        assert {run["name"] for run in found["runs"]} == set(Experiment.load(name).rows)
    results.main(shared, pages=shared)
    for report in reports:
        page = shared / (report.target.removeprefix("out/").replace("/", "-") + ".md")
        for row in Experiment.load(name).rows:
            assert f"| {row} |" in page.read_text(encoding="utf-8")
