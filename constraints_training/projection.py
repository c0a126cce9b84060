"""Starting the projection from the language model's table to a pretrained encoder's word embeddings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mucola.errors import MucolaError

FREQUENT = 1000
"""About so many tokens, those with the lowest ids, count in full when the projection is fitted."""


def shared_tokens(lm_tokenizer: Any, encoder_tokenizer: Any, size: int) -> tuple[Tensor, Tensor]:
    """Ids of the tokens whose text is one token in both vocabularies: (shared) and (shared).

    A piece that goes on within a word is matched with the encoder's own such piece (BERT's ``##ing``).
    """
    ids = list(range(min(size, len(lm_tokenizer))))
    texts = lm_tokenizer.batch_decode([[i] for i in ids], clean_up_tokenization_spaces=False)
    written = encoder_tokenizer(texts, add_special_tokens=False).input_ids
    inner = {name[2:]: i for name, i in encoder_tokenizer.get_vocab().items() if name.startswith("##")}
    special = set(encoder_tokenizer.all_special_ids)
    pairs = []
    for i, text, tokens in zip(ids, texts, written, strict=True):
        if text in inner and text.isalpha():
            pairs.append((i, inner[text]))
        elif len(tokens) == 1 and tokens[0] not in special:
            pairs.append((i, tokens[0]))
    return torch.tensor([i for i, _ in pairs]), torch.tensor([token for _, token in pairs])


def least_squares(source: Tensor, target: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Weight and bias of the linear map that takes ``source`` rows closest to ``target`` rows, weighted.

    >>> x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    >>> weight, bias = least_squares(x, x @ torch.ones(3, 2) + 1)
    >>> torch.allclose(weight, torch.ones(2, 3), atol=1e-4), torch.allclose(bias, torch.ones(2), atol=1e-4)
    (True, True)
    """
    scale = torch.ones(len(source), 1) if weights is None else weights.sqrt().unsqueeze(1)
    inputs = torch.cat([source, torch.ones(len(source), 1)], dim=1)
    solution = torch.linalg.lstsq((scale * inputs).double(), (scale * target).double()).solution
    return solution[:-1].T.float().contiguous(), solution[-1].float()


def start_projection(lm_tokenizer: Any, table: Tensor, encoder_tokenizer: Any, words: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and bias that take the table's rows to the encoder's word embeddings of the same tokens.

    Vocabularies are numbered from frequent to rare, so a token's id says how much it matters.
    """
    lm_ids, encoder_ids = shared_tokens(lm_tokenizer, encoder_tokenizer, len(table))
    if len(lm_ids) <= table.shape[1]:
        raise MucolaError(
            f"The encoder and the language model share only {len(lm_ids)} tokens, too few for a projection from "
            f"width {table.shape[1]}; choose another encoder, or train one from scratch with pretrained: false."
        )
    return least_squares(table[lm_ids], words[encoder_ids], FREQUENT / (FREQUENT + lm_ids))
