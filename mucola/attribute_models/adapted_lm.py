"""Language models trained on an attribute: class-conditional LMs and prefix discriminators.

They are the base language model with a LoRA adapter (several share one copy of its weights) or with
all weights trained; the embedding table is the base model's own in either case and is never saved.
A checkpoint is a folder with ``config.json`` (:class:`AdaptedLMConfig`), the weights as safetensors
(``adapter_model.safetensors`` beside peft's ``adapter_config.json``, or ``model.safetensors``), and
``head.safetensors`` for a prefix discriminator.
"""

from __future__ import annotations

import copy
import hashlib
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mucola.errors import MucolaError

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
ADAPTER_FILE = "adapter_model.safetensors"
HEAD_FILE = "head.safetensors"
KINDS = ("generative", "class_lm", "future")
TUNINGS = ("lora", "full", "frozen")


@dataclass(frozen=True)
class AdaptedLMConfig:
    """What a checkpoint of an adapted language model says about itself."""

    kind: str
    """``generative``: conditioned on a label word put in front (GeDi); ``class_lm``: text of one class
    (DExperts, DAPT); ``future``: predicts the label from every prefix (FUDGE)."""
    labels: list[str]
    """The classes; for a ``class_lm`` the one class it was trained on."""
    base_model: str
    table_fingerprint: str
    tuning: str = "lora"
    """``lora``, ``full``, or ``frozen`` (a prefix discriminator that trains its head alone)."""
    label_words: list[str] = field(default_factory=list)
    """What stands in front of a text to condition a ``generative`` model, in the order of ``labels``."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise MucolaError(f"An adapted language model is one of {', '.join(KINDS)}, not {self.kind!r}.")
        if self.tuning not in TUNINGS:
            raise MucolaError(f"The tuning of a language model is one of {', '.join(TUNINGS)}, not {self.tuning!r}.")
        if self.kind == "generative" and len(self.label_words) != len(self.labels):
            raise MucolaError(f"{len(self.labels)} labels need as many label words, not {len(self.label_words)}.")

    def save(self, folder: Path) -> None:
        """Write ``config.json``."""
        (folder / CONFIG_FILE).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> AdaptedLMConfig:
        """Read ``config.json``; fields this version does not know are left alone."""
        found = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        return cls(**{name: value for name, value in found.items() if name in cls.__dataclass_fields__})


class AdaptedLM:
    """A causal language model with the weights of an attribute switched in while it is called.

    Between calls ``lm`` is the unchanged base model, so that it can serve as such, and several
    adapted models can stand on the same one.
    """

    def __init__(self, lm: Any, config: AdaptedLMConfig, adapter: str | None) -> None:
        self.lm = lm
        self.config = config
        self.adapter = adapter

    def __call__(self, **inputs: Any) -> Any:
        """What the causal LM returns for these inputs (``inputs_embeds``, ``past_key_values``, ...)."""
        with self.active() as lm:
            return lm(**inputs)

    @contextmanager
    def active(self) -> Iterator[Any]:
        """The language model with this attribute's weights in use."""
        if self.adapter is None:
            yield self.lm
            return
        _switch(self.lm, self.adapter)
        try:
            yield self.lm
        finally:
            _switch(self.lm, None)

    @classmethod
    def load(cls, folder: Path, lm: Any) -> AdaptedLM:
        """The model in ``folder`` on top of the base model ``lm``, which it shares if it is an adapter."""
        config = AdaptedLMConfig.load(folder)
        if config.tuning == "lora":
            return cls(lm, config, _attach(folder, lm))
        if config.tuning == "full":
            lm = copy.deepcopy(lm)
            _load_without_tables(lm, folder / WEIGHTS_FILE)
        return cls(lm.eval().requires_grad_(False), config, None)


class FutureDiscriminator(nn.Module):
    """Predicts from every prefix which label the whole text will have (FUDGE): a linear head on hidden states."""

    def __init__(self, lm: AdaptedLM, head: nn.Linear) -> None:
        super().__init__()
        self.lm = lm
        self.head = head

    @property
    def labels(self) -> list[str]:
        """Names of the classes, in the order of the logits."""
        return self.lm.config.labels

    def forward(self, **inputs: Any) -> tuple[Tensor, Any]:
        """Logits (texts, length, classes) after each token, and the cache to go on from.

        Takes what the language model takes: ``input_ids`` or ``inputs_embeds``, ``attention_mask``,
        ``past_key_values`` and ``use_cache``.
        """
        with self.lm.active() as lm:
            states = hidden_states(lm, **inputs)
        return self.head(states.last_hidden_state.to(self.head.weight.dtype)), states.past_key_values

    @classmethod
    def load(cls, folder: Path, lm: Any) -> FutureDiscriminator:
        """The discriminator in ``folder`` on top of the base model ``lm``."""
        adapted = AdaptedLM.load(folder, lm)
        weights = load_file(folder / HEAD_FILE)
        head = nn.Linear(weights["weight"].shape[1], weights["weight"].shape[0])
        head.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
        return cls(adapted, head.to(lm.device)).eval().requires_grad_(False)


def hidden_states(lm: Any, **inputs: Any) -> Any:
    """The output of a causal LM below its vocabulary head, which is most of the cost of short texts."""
    return lm.base_model(**inputs)


def save_adapted_lm(folder: Path, lm: Any, config: AdaptedLMConfig, head: nn.Linear | None = None) -> None:
    """Write a checkpoint that :class:`AdaptedLM` and :class:`FutureDiscriminator` load."""
    folder.mkdir(parents=True, exist_ok=True)
    config.save(folder)
    if config.tuning == "lora":
        (name,) = lm.peft_config
        weights = lm.get_adapter_state_dict(name)
        save_file({f"base_model.model.{key}": _stored(value) for key, value in weights.items()}, folder / ADAPTER_FILE)
        settings = copy.copy(lm.peft_config[name])
        settings.base_model_name_or_path = config.base_model  # the name, not a path of the training machine
        settings.save_pretrained(folder)
    elif config.tuning == "full":
        tables = _table_keys(lm)
        kept = {key: _stored(value) for key, value in lm.state_dict().items() if key not in tables}
        save_file(kept, folder / WEIGHTS_FILE)
    if head is not None:
        save_file({key: _stored(value) for key, value in head.state_dict().items()}, folder / HEAD_FILE)


def _stored(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu").contiguous()


def _table_keys(lm: Any) -> set[str]:
    """Names of the input and output tables in the state of ``lm`` (the same tensor in most models)."""
    tables = [module.weight for module in (lm.get_input_embeddings(), lm.get_output_embeddings()) if module is not None]
    shared = {table.data_ptr() for table in tables}
    return {key for key, value in lm.state_dict().items() if value.data_ptr() in shared}


def _load_without_tables(lm: Any, file: Path) -> None:
    tables = _table_keys(lm)
    missing, unexpected = lm.load_state_dict(load_file(file), strict=False)
    if unexpected or set(missing) - tables:
        raise MucolaError(f"{file} was trained on another kind of language model than {lm.config.model_type}.")


def _attach(folder: Path, lm: Any) -> str:
    """Add the adapter in ``folder`` to ``lm``, once, under a name of its own, switched off."""
    name = "mucola_" + hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]
    if name not in getattr(lm, "peft_config", {}):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Already found a `peft_config`")  # several adapters are meant
            lm.load_adapter(str(folder), adapter_name=name, is_trainable=False)
    _switch(lm, None)
    return name


def _switch(lm: nn.Module, adapter: str | None) -> None:
    """Use one adapter of ``lm``, or none, without asking for gradients of its weights."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for module in lm.modules():
        if isinstance(module, BaseTunerLayer):
            module.enable_adapters(adapter is not None)
            if adapter is not None:
                module.set_adapter([adapter], inference_mode=True)


def table_of(lm: Any) -> torch.Tensor:
    """The input table of a language model: what embeddings are looked up in."""
    return lm.get_input_embeddings().weight
