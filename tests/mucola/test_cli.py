"""The command as a user meets it, in a process of its own."""

from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mucola.cli import COMMANDS, main
from mucola.commands.sample import _write, arguments_parser, written_constraints
from mucola.constraints import parse_all
from mucola.generations import Run
from mucola.sampler import Sample


def mucola(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mucola", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=300)


def test_help_lists_the_commands_and_imports_nothing_heavy() -> None:
    done = mucola("--help")
    assert done.returncode == 0
    assert all(name in done.stdout for name in COMMANDS)
    loaded = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "mucola", "--help"], capture_output=True, text=True
    ).stderr
    heavy = ("torch", "transformers", "jsonargparse", "lightning", "rich")
    assert not [name for name in heavy if f" {name}\n" in loaded]


def within(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run the command in this process, which spares importing torch again: exit code, output, errors."""
    code = 0
    try:
        main(arguments)
    except SystemExit as stop:
        code = int(stop.code or 0)
    output, errors = capsys.readouterr()
    return code, output, errors


def test_every_command_has_help_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("sample", "demo", "models"):
        code, output, _ = within(capsys, name, "--help")
        assert code == 0
        assert f"mucola {name}" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sampel"], "did you mean 'sample'"),
        (["--nonsense"], "no option named"),
        (["demo", "--nonsense"], "nonsense"),
        (["models", "pull", "smolm2"], "did you mean 'smollm2-135m'"),
        (["models", "path", "nowhere"], "no built-in model"),
        (["sample", "The book", "--model", "no-such-model"], "no model named"),
        (["sample", "The book", "--model", "./no-such-folder"], "not a folder"),
        (["sample", "The book", "--constraint", "keyward('x')"], "did you mean 'keyword'"),
        (["sample", "The book", "--sampling.mode", "quick"], "quick"),
        (["sample", "The book", "--config", "no-such.yaml"], "no-such.yaml"),
    ],
)
def test_a_mistake_is_one_clear_sentence_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    code, _, errors = within(capsys, *arguments)
    assert code == 2
    assert message in errors
    assert len(errors.strip().splitlines()) == 1


def test_in_a_process_of_its_own_a_mistake_leaves_no_traceback() -> None:
    done = mucola("sample", "The book", "--length", "none")
    assert done.returncode == 2
    assert done.stderr.startswith("mucola: error: ")
    assert "Traceback" not in done.stderr


def test_malformed_yaml_is_named_with_its_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "broken.yaml"
    config.write_text("length: 12\nkeyword: [beach\n", encoding="utf-8")
    code, _, errors = within(capsys, "sample", "The book", "--config", str(config))
    assert code == 2
    assert f"{config}, line 3" in errors


def test_configs_are_read_in_turn_and_overridden(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text("length: 12\nsampling: {steps: 30, mode: faithful}\n", encoding="utf-8")
    second.write_text("length: 14\n", encoding="utf-8")
    files = ["--config", str(first), "--config", str(second), "--sampling.steps", "40"]
    code, output, _ = within(capsys, "sample", "The book", *files, "--print_config")
    assert code == 0
    assert "length: 14" in output
    assert "steps: 40" in output
    assert "mode: faithful" in output


def test_constraints_of_the_command_line_and_of_yaml_are_one_notation(tmp_path: Path) -> None:
    config = tmp_path / "a.yaml"
    config.write_text("constraint: ['no_repetition(3)']\nexclude: [war, 'long road']\n", encoding="utf-8")
    given = ["The book", "--config", str(config), "--positive", "0.9", "--keyword", "sea", "--keyword", 'a "b"']
    written = written_constraints(arguments_parser().parse_args(given))
    names = [constraint.name for constraint in parse_all(written)]
    expected = ["no_repetition(3)", "positive > 0.9", 'keyword("sea")', 'keyword("a "b"")', 'exclude("war")']
    assert names == [*expected, 'exclude("long road")']


def test_an_unwritable_cache_is_explained(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("in the way", encoding="utf-8")
    monkeypatch.setenv("MUCOLA_HOME", str(file / "cache"))
    code, _, errors = within(capsys, "models", "pull", "minilm-l6")
    assert code == 2
    assert "set MUCOLA_HOME" in errors


@pytest.mark.real
def test_sampling_from_the_command_line_writes_what_it_shows(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    chains = ["--sampling.mode", "faithful", "--sampling.steps", "10", "--sampling.restarts", "0"]
    options = ["--length", "8", "-n", "2", "--keyword", "beach", *chains]
    files = ["--output", str(out / "s.jsonl"), "--trace", str(out / "traces")]
    code, output, _ = within(capsys, "sample", "The dog", *options, *files)
    assert code == 0
    (samples,) = Run(out / "s.jsonl")
    assert len(samples) == 2
    assert all(sample.text.split()[0] in output for sample in samples)
    assert len(list((out / "traces").glob("*.png"))) == len(list((out / "traces").glob("*.json.gz"))) >= 2


def test_a_failed_write_leaves_the_earlier_samples(tmp_path: Path) -> None:
    path = tmp_path / "new" / "s.jsonl"
    sample = Sample("1", "The dog", 0, " barked.", "langevin")
    _write([sample], path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        _write([sample, Sample("1", "The dog", 1, " slept.", "langevin", nll=math.nan)], path)
    assert path.read_bytes() == before
    _write([Sample("1", "The dog", 0, " ran.", "langevin")], path)
    assert b"ran" in path.read_bytes()
    assert list(path.parent.iterdir()) == [path]


def test_a_second_command_starts_quickly() -> None:
    """A ratio, not a time: help costs little more than starting Python."""

    def seconds(*command: str) -> float:
        before = time.perf_counter()
        subprocess.run([sys.executable, *command], capture_output=True, check=True)
        return time.perf_counter() - before

    bare = min(seconds("-c", "import subprocess, importlib.metadata") for _ in range(3))
    assert min(seconds("-m", "mucola", "--help") for _ in range(3)) < 5 * bare


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have no such setting")
def test_large_buffers_are_taken_from_the_system_once() -> None:
    program = """if True:
        import resource, torch
        from mucola.cli import run

        def faults():
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

        def work(_):
            before = faults()
            for _ in range(50):
                torch.ones(64 * 2**20 // 4)  # 64 MiB, of 16,384 pages
            print(faults() - before)

        run(work, [])
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 25 * 16_384, "every buffer anew would be fifty times 16,384 faults"
