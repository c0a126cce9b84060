"""Every command and program of the README runs as it stands there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from mucola.cli import main

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    ((?:make|mucola) .*?)(?:\s+#.*)?$", README, re.MULTILINE)
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_readme_has_what_is_tested_here() -> None:
    assert "make demo" in COMMANDS
    assert "make test" in COMMANDS
    assert len(PROGRAMS) == 1


@pytest.mark.real
@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("mucola")])
def test_commands(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(shlex.split(command)[1:])
    assert capsys.readouterr().out.strip()


def test_make_commands_are_targets_of_the_makefile() -> None:
    makefile = (Path(__file__).parent.parent / "Makefile").read_text(encoding="utf-8")
    for command in COMMANDS:
        if command.startswith("make"):
            assert re.search(rf"^{command.split()[1]}:", makefile, re.MULTILINE)


@pytest.mark.real
def test_demo(capsys: pytest.CaptureFixture[str]) -> None:
    """What `make demo` runs, with a short text."""
    main(["demo", "--length", "6", "--keyword", "sea"])
    output = capsys.readouterr().out
    assert "plain" in output
    assert "constrained" in output
    assert "positive > 0.9" in output
    assert 'keyword("sea")' in output


@pytest.mark.real
def test_program(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(PROGRAMS[0], "README.md", "exec"), {})
    lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) == 2
    assert all(line.split()[0] in ("ancestral", "langevin", "fallback") for line in lines)


def test_pages_that_the_readme_points_to_exist() -> None:
    for page in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (Path(__file__).parent.parent / page).exists(), page
