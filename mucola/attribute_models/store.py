"""Finding and loading attribute models: a shipped name, a folder, or a Hugging Face id."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from mucola import model_store
from mucola.attribute_models.adapted_lm import AdaptedLM, FutureDiscriminator, table_of
from mucola.attribute_models.classifier import EmbeddingClassifier
from mucola.embeddings import EmbeddingTable, fingerprint
from mucola.errors import MucolaError
from mucola.names import unknown
from mucola.packages import quiet_transformers

SHIPPED = Path(__file__).parent.parent / "checkpoints"


def shipped() -> list[str]:
    """Names of the attribute models that come with mucola."""
    return sorted(file.parent.name for file in SHIPPED.glob("*/config.json"))


def find_attribute_model(name: str | Path) -> Path:
    """The folder of an attribute model; one on the Hugging Face hub is fetched first."""
    text = str(name)
    if text in shipped():
        return SHIPPED / text
    path = Path(text).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise MucolaError(f"{text} has no config.json, so it is not an attribute model.")
        return path
    if path.exists() or text.startswith((".", "~", "/")) or text.count("/") != 1:
        raise unknown("attribute model", text, shipped())
    return _fetch(text)


def load_attribute_model(
    name: str | Path, table: EmbeddingTable | None = None, lm: Any = None
) -> EmbeddingClassifier | AdaptedLM | FutureDiscriminator:
    """The attribute model called ``name``, frozen, in fp32 and in evaluation mode.

    It is checked against ``table``, or the table of ``lm``, if one is given: a model that was trained
    on another table would read nonsense. Adapted language models stand on ``lm``; without it
    the base model is loaded by the name in the checkpoint.
    """
    folder = find_attribute_model(name)
    config = read_config(folder)
    kind = config["kind"]
    if kind != "classifier" and lm is None:
        lm, _ = model_store.load_causal_lm(config["base_model"])
    if table is not None:
        check_table(name, config, table.fingerprint)
    elif lm is not None:
        check_table(name, config, fingerprint(table_of(lm)))
    with quiet_transformers():
        if kind == "classifier":
            model = EmbeddingClassifier.from_pretrained(folder, dtype=torch.float32, use_safetensors=True)
            return model.eval().requires_grad_(False)
        if kind == "future":
            return FutureDiscriminator.load(folder, lm)
        return AdaptedLM.load(folder, lm)


def read_config(folder: Path) -> dict[str, Any]:
    """The ``config.json`` of an attribute model."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise MucolaError(f"{folder / 'config.json'} cannot be read: {error}") from error
    if not isinstance(config, dict) or {"kind", "base_model", "table_fingerprint"} - config.keys():
        raise MucolaError(f"{folder} is not an attribute model: its config.json names no kind, base model and table.")
    return config


def check_table(name: str | Path, config: dict[str, Any], found: str) -> None:
    """Refuse a model that was trained on another embedding table than ``found``."""
    if config["table_fingerprint"] != found:
        raise MucolaError(
            f"{name} was trained on the embedding table of {config['base_model']} (fingerprint "
            f"{config['table_fingerprint']}), this model's is {found}; use {config['base_model']}, or train "
            "one for this model with `mucola train fit`."
        )


def _fetch(repository: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repository, allow_patterns=["*.json", "*.safetensors", "*.md"]))
    except (OSError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        reason = str(error).strip().splitlines()[0]
        known = unknown("attribute model", repository, shipped())
        raise MucolaError(f"{known} (As a Hugging Face id: {reason})") from error
