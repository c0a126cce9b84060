"""For users of transformers: ``model.generate(..., custom_generate=mucola.generate, constraints=[...])``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from mucola.constraints import Constraint, parse_all
from mucola.errors import MucolaError
from mucola.language_model import LanguageModel
from mucola.pool import Request
from mucola.prompts import Prompt
from mucola.sampler import Sampler
from mucola.settings import Settings

_LANGUAGE_MODELS: WeakKeyDictionary[Any, LanguageModel] = WeakKeyDictionary()


def generate(
    model: Any,
    input_ids: Tensor,
    generation_config: Any,
    constraints: Iterable[str | Constraint] = (),
    text_tokenizer: Any = None,
    settings: Settings | None = None,
    seed: int = 0,
    **model_inputs: Any,
) -> Tensor:
    """A decoding function for ``generate``: each row of ``input_ids`` with its constrained continuation.

    ``max_new_tokens`` is the length. ``text_tokenizer`` is the model's tokenizer (``generate`` keeps the
    name ``tokenizer`` to itself); without it, the one saved with the model is loaded.
    """
    language_model = _language_model(model, text_tokenizer)
    length = generation_config.max_new_tokens or generation_config.max_length - input_ids.shape[1]
    made = parse_all(constraints)
    mask = model_inputs.get("attention_mask", torch.ones_like(input_ids))
    requests = []
    for row, (ids, kept) in enumerate(zip(input_ids, mask.bool(), strict=True)):
        tokens = tuple(ids[kept].tolist())
        text = language_model.tokenizer.decode(tokens, skip_special_tokens=True)
        requests.append(Request(Prompt(text, tokens, id=str(tokens)), length, made, row))
    done = sorted(Sampler(language_model, settings).run(requests, seed), key=lambda sample: sample.sample)
    new = torch.tensor([sample.tokens for sample in done], device=input_ids.device)
    return torch.cat([input_ids, new], dim=1)


def _language_model(model: Any, tokenizer: Any) -> LanguageModel:
    """The model as the sampler sees it, made once for each model."""
    if model not in _LANGUAGE_MODELS:
        if tokenizer is None:
            from transformers import AutoTokenizer

            if not model.name_or_path:
                raise MucolaError("This model does not know its tokenizer; pass it as text_tokenizer=...")
            tokenizer = AutoTokenizer.from_pretrained(model.name_or_path)
        _LANGUAGE_MODELS[model] = LanguageModel(model, tokenizer)
    return _LANGUAGE_MODELS[model]
