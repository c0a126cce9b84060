"""Runs as a user starts them: killed and resumed, on two processes, and with mistakes."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny_training import sentences, write_tsv

from constraints_training.command import command
from mucola.cli import main

LAUNCH = [sys.executable, "-m", "constraints_training"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in the processes that are started here: curves that agree to 1e-6 need the same arithmetic."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def losses(root: Path) -> dict[int, float]:
    """Training loss by step, from the CSV logs of all runs in a folder, the newest last."""
    found = {}
    for file in sorted(root.glob("logs/version_*/metrics.csv")):
        with file.open() as rows:
            for row in csv.DictReader(rows):
                if row.get("train_loss"):
                    found[int(row["step"])] = float(row["train_loss"])
    return found


def final_weights(root: Path) -> dict[str, torch.Tensor]:
    return torch.load(root / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]


@pytest.fixture
def logged(classifier_arguments: list[str]) -> list[str]:
    """A run of two epochs of 32 steps that logs and saves often."""
    return [*classifier_arguments, "--trainer.max_epochs=2", "--trainer.log_every_n_steps=1", "--save_every=4"]


def test_a_run_killed_in_mid_epoch_ends_as_if_it_had_not_been(logged: list[str], tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    command([*logged, f"--trainer.default_root_dir={whole}"])

    resumed = [*logged, f"--trainer.default_root_dir={broken}"]
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen([*LAUNCH, *resumed], env=ENVIRONMENT, stdout=nowhere, stderr=nowhere)
    last = broken / "checkpoints" / "last.ckpt"
    deadline = time.monotonic() + 120
    while not last.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    step = torch.load(last, weights_only=True)["global_step"]
    assert 0 < step < 32, "killed in the first epoch"

    command([*resumed, "--ckpt_path=last"])
    expected, found = losses(whole), losses(broken)
    assert max(found) == max(expected) == 63
    assert all(found[number] == pytest.approx(expected[number], abs=1e-6) for number in range(step, 64))
    for name, weight in final_weights(whole).items():
        assert torch.allclose(weight, final_weights(broken)[name], atol=1e-6), name


def test_two_processes_learn_what_one_does(logged: list[str], tmp_path: Path) -> None:
    """Without dropout, which each process draws by itself, the loss curves agree to 1e-4."""
    one, two = tmp_path / "one", tmp_path / "two"
    common = [*logged, "--model.dropout=0", "--trainer.max_epochs=1"]
    command([*common, f"--trainer.default_root_dir={one}"])
    both = ["--trainer.devices=2", "--trainer.strategy=ddp", f"--trainer.default_root_dir={two}"]
    done = subprocess.run([*LAUNCH, *common, *both], capture_output=True, text=True, env=ENVIRONMENT, timeout=300)
    assert done.returncode == 0, done.stderr
    expected, found = losses(one), losses(two)
    assert len(expected) == len(found) == 32
    assert all(found[step] == pytest.approx(loss, abs=1e-4) for step, loss in expected.items())


def mistake(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    """What ``mucola train`` says to a mistake; the exit code must be 2."""
    with pytest.raises(SystemExit) as stopped:
        main(["train", *arguments])
    said = capfd.readouterr().err
    assert stopped.value.code == 2
    assert "Traceback" not in said
    return said


def test_bad_data_a_missing_column_and_an_empty_class(
    classifier_arguments: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bad = write_tsv(tmp_path / "bad.tsv", [(5, text) for _, text in sentences(10)])
    said = mistake([*classifier_arguments, f"--data.train.path={bad}"], capfd)
    assert f"No usable row in {bad}: line 2 of {bad} has unknown label '5'" in said
    assert "no column 'content'" in mistake([*classifier_arguments, "--data.train.text_column=content"], capfd)
    one_class = write_tsv(tmp_path / "one.tsv", [(1, text) for _, text in sentences(40)])
    said = mistake([*classifier_arguments, f"--data.train.path={one_class}"], capfd)
    assert "The train data have no text of class 'negative'" in said


def test_an_encoder_that_does_not_fit(classifier_arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    said = mistake([*classifier_arguments, "--model.layers=9"], capfd)
    assert "layers must be between 1 and the encoder's 3, not 9" in said
    said = mistake([*classifier_arguments, "--model.pretrained=true"], capfd)
    assert "share only 25 tokens, too few for a projection from width 32" in said


def test_a_setting_out_of_range(classifier_arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert "batch_size must be at least 1" in mistake([*classifier_arguments, "--data.batch_size=0"], capfd)
