"""``mucola train report``: what it prints and writes for a classifier."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from constraints_training.command import command


def test_a_report_on_a_classifier(
    classifier_arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command(classifier_arguments)
    capsys.readouterr()
    export, out = tmp_path / "run" / "export", tmp_path / "report"
    command(["report", str(export), f"--out={out}", "--limit=100", "--generated=8"])
    said = capsys.readouterr().out
    for heading in ("accuracy by length", "only the beginning is read", "language model writes the second half"):
        assert heading in said
    found = json.loads((out / "report.json").read_text())
    assert found["texts"] == 100
    assert found["accuracy"] > 0.9 > found["majority"]
    assert found["accuracy"] >= found["by_share_read"]["0.25"], "the telling word may stand behind the first quarter"
    assert found["by_share_read"]["1.0"] == pytest.approx(found["accuracy"])
    assert sum(part["texts"] for part in found["by_length"].values()) == 100
    assert found["generated"]["texts"] == 8
    assert (out / "report.png").stat().st_size > 1000
