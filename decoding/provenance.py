"""What ``run.json`` says of a run: everything that its texts depend on."""

from __future__ import annotations

import ast
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from mucola.attribute_models import find_attribute_model
from mucola.constraints.classifiers import KNOWN_LABELS
from mucola.files import sha256
from mucola.language_model import LanguageModel

LIBRARIES = ("mucola", "torch", "transformers", "lightning", "peft")


def versions() -> dict[str, str]:
    """Of Python and of the libraries that results depend on."""
    return {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}}


def model_facts(language_model: LanguageModel) -> dict[str, Any]:
    """Which language model was sampled from."""
    return {
        "name": language_model.name,
        "table": language_model.table.fingerprint,
        "dtype": str(language_model.model.dtype).removeprefix("torch."),
    }


def steered(constraints: Iterable[str], others: Sequence[str] = ()) -> list[dict[str, str]]:
    """The attribute models that steer: by name, folder and a fingerprint of their weights."""
    names = [name for written in constraints for name in _models_of(written)]
    found = []
    for name in dict.fromkeys([*names, *others]):
        folder = find_attribute_model(name)
        fingerprint = sha256(sorted(folder.glob("*.safetensors")))[:12]
        found.append({"name": name, "folder": str(folder.resolve()), "fingerprint": fingerprint})
    return found


def _models_of(constraint: str) -> Iterator[str]:
    """Names of the attribute models in a constraint's notation.

    >>> list(_models_of('classifier("toxic") < 0.01')), list(_models_of('contrast("a", "b")'))
    (['toxicity'], ['a', 'b'])
    """
    for node in ast.walk(ast.parse(constraint.strip(), mode="eval")):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        given = [ast.literal_eval(argument) for argument in node.args]
        named = {option.arg: ast.literal_eval(option.value) for option in node.keywords}
        kind = node.func.id
        if kind == "classifier":
            label = (given[:1] or [named.get("label")])[0]
            yield (given[1:2] or [named.get("model")])[0] or KNOWN_LABELS[label]
        elif kind == "most_likely":
            yield (given[1:2] or [named.get("model")])[0]
        elif kind == "generative":
            yield (given[:1] or [named.get("model")])[0]
        elif kind == "contrast":
            yield from (*given, *(named[name] for name in ("label", "other") if name in named))


def without(config: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """A config without the settings that do not change what is written, at any depth."""
    return {
        key: without(value, names) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if key not in names
    }
