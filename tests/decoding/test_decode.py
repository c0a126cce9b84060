"""``mucola decode`` in this process: what is written, and what a folder that is there already means."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from decoding.folder import RunFolder
from mucola.cli import main
from mucola.errors import MucolaError
from mucola.generations import Generation, Run
from mucola.language_model import LanguageModel
from mucola.trace import Trace

STEPS = ["--method.sampling.steps", "12", "--method.sampling.proposals", "4", "--method.sampling.restarts", "0"]
CHAINS = [*STEPS, "--method.sampling.step_size", '{"start": 0.1, "end": 0.125, "steps": 10}']


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    rows = [
        {"prompt": "The book", "id": "b"},
        {"prompt": "A dog ran", "id": "d", "keywords": ["sea"], "reference": "r"},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def decode(tiny: Path, prompts: Path, output: Path, *more: str) -> Path:
    main(["decode", "--model", str(tiny), "--prompts.file", str(prompts), "--output", str(output), *more])
    return output


def samples(folder: Path) -> dict[tuple[str, int], Generation]:
    return {(item.prompt_id, item.sample): item for group in Run(folder) for item in group}


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["decode", *arguments])
    assert stop.value.code == 2
    errors = capsys.readouterr().err
    assert len(errors.strip().splitlines()) == 1
    return errors


def test_a_run_has_every_sample_and_tells_what_made_it(
    tiny: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = decode(tiny, prompts, tmp_path / "run", "-n", "3", "--length", "8", "--exclude", "war", *CHAINS)
    found = samples(folder)
    assert set(found) == {(prompt, index) for prompt in "bd" for index in range(3)}
    assert found["d", 0].keywords == ["sea"]
    assert found["d", 0].reference == "r"
    assert set(found["d", 0].values) == {'exclude("war")', 'keyword("sea")'}
    assert set(found["b", 0].values) == {'exclude("war")'}
    info = json.loads((folder / "run.json").read_text())
    assert info["constraints"] == ['exclude("war")']
    assert info["config"]["method"]["init_args"]["sampling"]["steps"] == 12
    assert info["models"]["language_model"]["name"] == str(tiny)
    assert {"mucola", "torch", "transformers"} <= info["versions"].keys()
    assert "6 of 6 samples" in capsys.readouterr().out


def test_what_is_on_disk_is_not_made_again_and_the_rest_is_the_same(tiny: Path, prompts: Path, tmp_path: Path) -> None:
    options = ["-n", "4", "--length", "6", *CHAINS]
    whole = decode(tiny, prompts, tmp_path / "whole", *options)
    part = decode(tiny, prompts, tmp_path / "part", *options)
    lines = (part / "rank-0.jsonl").read_bytes().splitlines(keepends=True)
    (part / "rank-0.jsonl").write_bytes(b"".join(lines[:2]))
    (part / "rank-5.jsonl").write_bytes(lines[4] + lines[6][:40])  # another rank's, whose last line was cut off
    decode(tiny, prompts, part, *options, "--method.sampling.batch_size", "2")
    assert (part / "rank-0.jsonl").read_bytes().startswith(b"".join(lines[:2]))
    assert (part / "rank-5.jsonl").read_bytes() == lines[4]
    again, before = samples(part), samples(whole)
    assert again.keys() == before.keys()
    assert all(again[key].text == before[key].text for key in before)


def test_another_config_in_the_folder_is_an_error_that_says_what_differs(
    tiny: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = decode(tiny, prompts, tmp_path / "run", "--length", "6", *STEPS)
    before = {file.name: file.read_bytes() for file in folder.glob("r*")}
    given = ["--model", str(tiny), "--prompts.file", str(prompts), "--output", str(folder), *STEPS]
    capsys.readouterr()
    assert "length was 6, now 7" in fails(capsys, *given, "--length", "7")
    assert "seed was 0, now 1" in fails(capsys, *given, "--length", "6", "--seed", "1")
    assert "constraints was []" in fails(capsys, *given, "--length", "6", "--exclude", "war")
    assert "resume" in fails(capsys, *given, "--length", "6", "--resume", "false")
    prompts.write_text('{"prompt": "Another"}\n', encoding="utf-8")
    assert "prompts.count was 2, now 1" in fails(capsys, *given, "--length", "6")
    assert before == {file.name: file.read_bytes() for file in folder.glob("r*")}


def test_of_several_lengths_the_best_is_kept(tiny: Path, prompts: Path, tmp_path: Path, lm: LanguageModel) -> None:
    several = samples(decode(tiny, prompts, tmp_path / "several", "-n", "2", "--length", "[1, 5, 9]", *CHAINS))
    each = [samples(decode(tiny, prompts, tmp_path / str(n), "-n", "2", "--length", str(n), *CHAINS)) for n in (5, 9)]
    assert set(several) == set(each[0])
    for key, best in several.items():
        assert len(best.tokens or ()) in (1, 5, 9)
        others = [run[key] for run in each]
        assert best.verified >= max(bool(other.verified) for other in others)
        equal = [other.nll / len(other.tokens) for other in others if other.verified == best.verified]  # type: ignore[operator,arg-type]
        assert best.nll / len(best.tokens) <= min(equal, default=99) + 1e-3  # type: ignore[operator,arg-type]


def test_texts_go_on_after_the_constrained_part(tiny: Path, prompts: Path, tmp_path: Path, lm: LanguageModel) -> None:
    options = ["-n", "3", "--length", "6", *CHAINS]
    short = samples(decode(tiny, prompts, tmp_path / "short", *options))
    long = samples(decode(tiny, prompts, tmp_path / "long", *options, "--continue_to", "15"))
    assert set(short) == set(long)
    for key, item in long.items():
        start = short[key]
        assert item.tokens is not None
        assert (item.constrained, len(item.tokens)) == (6, 15)
        assert item.tokens[:6] == start.tokens
        assert item.text.startswith(start.text)
        assert (item.source, item.satisfied, item.values) == (start.source, start.satisfied, start.values)
        assert item.nll == pytest.approx(lm.score(item.tokens, lm.encode(item.prompt)), abs=1e-2)
    assert len({item.text[len(short[key].text) :] for key, item in long.items()}) > 1


def test_chains_leave_traces_when_asked(tiny: Path, prompts: Path, tmp_path: Path) -> None:
    folder = decode(
        tiny,
        prompts,
        tmp_path / "run",
        "--length",
        "6",
        *CHAINS,
        "--method.trace",
        "true",
        "--method.sampling.mode",
        "faithful",
    )
    run = Run(folder)
    for group in run:
        for item in group:
            path = run.trace_path(item)
            assert path is not None
            assert len(Trace.load(path).steps) == (item.steps or 0) + 1


def test_half_precision_models_have_chains_and_energies_in_full(tiny: Path, prompts: Path, tmp_path: Path) -> None:
    for dtype in ("bfloat16", "float16"):
        folder = decode(tiny, prompts, tmp_path / dtype, "--length", "6", "--dtype", dtype, *CHAINS)
        assert json.loads((folder / "run.json").read_text())["models"]["language_model"]["dtype"] == dtype
        assert all(item.nll and item.nll < 100 for item in samples(folder).values())


def test_mistakes_are_one_sentence_and_leave_nothing(
    tiny: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty, file, out = tmp_path / "empty.txt", tmp_path / "file", tmp_path / "out"
    empty.touch()
    file.touch()
    model, given = ["--model", str(tiny)], ["--prompts.file", str(prompts), "--output", str(out)]
    assert "no prompts" in fails(capsys, *model, "--prompts.file", str(empty), "--output", str(out))
    assert "Cannot write" in fails(capsys, *model, "--prompts.file", str(prompts), "--output", str(file / "x"))
    assert "embedding table" in fails(capsys, *model, *given, "--toxic", "0.01")
    assert "only" in fails(capsys, *model, *given, "--devices", "4096")
    assert "at least 1" in fails(capsys, *model, *given, "-n", "0")
    assert "do not fit" in fails(capsys, *model, *given, "--length", "500")
    assert "continue_to" in fails(capsys, *model, *given, "--length", "20", "--continue_to", "10")
    long = tmp_path / "long.jsonl"
    long.write_text('{"prompt": "The", "id": "d", "keywords": ["surfboard"]}\n', encoding="utf-8")
    words = ["--prompts.file", str(long), "--output", str(out), "--length", "1", *STEPS]
    assert "Prompt d" in fails(capsys, *model, *words)
    assert not [found for found in out.glob("*.jsonl") if found.stat().st_size]
    decode(tiny, prompts, out, "--length", "6", *STEPS)


def test_a_model_that_steers_may_lie_elsewhere_but_must_be_the_same(tmp_path: Path) -> None:
    def steered(folder: str, fingerprint: str) -> dict[str, object]:
        return {"steered": [{"name": "toxicity", "folder": folder, "fingerprint": fingerprint}]}

    (tmp_path / "rank-0.jsonl").write_text("{}\n", encoding="utf-8")
    (tmp_path / "run.json").write_text(json.dumps(steered("/here", "abc")), encoding="utf-8")
    RunFolder(tmp_path).check(steered("/there", "abc"))
    with pytest.raises(MucolaError, match="holds a run of another kind: steered"):
        RunFolder(tmp_path).check(steered("/here", "def"))
