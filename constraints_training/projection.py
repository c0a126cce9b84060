"""Starting the projection from the language model's table to a pretrained encoder's word embeddings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mucola.errors import MucolaError


def shared_tokens(lm_tokenizer: Any, encoder_tokenizer: Any, size: int) -> tuple[Tensor, Tensor]:
    """Ids of the tokens whose text is one token in both vocabularies: (shared) and (shared)."""
    ids = list(range(min(size, len(lm_tokenizer))))
    texts = lm_tokenizer.batch_decode([[i] for i in ids], clean_up_tokenization_spaces=False)
    pieces = encoder_tokenizer(texts, add_special_tokens=False).input_ids
    special = set(encoder_tokenizer.all_special_ids)
    pairs = [(i, piece[0]) for i, piece in zip(ids, pieces, strict=True) if len(piece) == 1 and piece[0] not in special]
    return torch.tensor([i for i, _ in pairs]), torch.tensor([piece for _, piece in pairs])


def least_squares(source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and bias of the linear map that takes ``source`` rows closest to ``target`` rows.

    >>> x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    >>> weight, bias = least_squares(x, x @ torch.ones(3, 2) + 1)
    >>> torch.allclose(weight, torch.ones(2, 3), atol=1e-4), torch.allclose(bias, torch.ones(2), atol=1e-4)
    (True, True)
    """
    ones = torch.ones(len(source), 1, dtype=torch.double)
    solution = torch.linalg.lstsq(torch.cat([source.double(), ones], dim=1), target.double()).solution
    return solution[:-1].T.float().contiguous(), solution[-1].float()


def start_projection(lm_tokenizer: Any, table: Tensor, encoder_tokenizer: Any, words: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and bias that take the table's rows to the encoder's word embeddings of the same tokens."""
    lm_ids, encoder_ids = shared_tokens(lm_tokenizer, encoder_tokenizer, len(table))
    if len(lm_ids) <= table.shape[1]:
        raise MucolaError(
            f"The encoder and the language model share only {len(lm_ids)} tokens, too few for a projection from "
            f"width {table.shape[1]}; choose another encoder, or train one from scratch with pretrained: false."
        )
    return least_squares(table[lm_ids], words[encoder_ids])
