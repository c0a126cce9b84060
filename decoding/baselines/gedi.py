"""GeDi: a class-conditional LM tells the class of every possible next token (Krause et al. 2020, arXiv 2009.06367)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from decoding.baselines.attribute import label_index, load_adapted
from decoding.baselines.left_to_right import LeftToRight, Rows, Steer
from decoding.baselines.reading import Reader
from mucola.language_model import LanguageModel
from mucola.pool import Request


class GeDiProcessor(LogitsProcessor):
    """Bayes' rule over class-conditional LMs, for ``generate()`` of any causal LM.

        p(c | x_1..t) = softmax_c( (scale / t) sum_j log p(x_j | x_<j, c) )        (uniform prior)
        p_w(x_t | x_<t, c) ~ p_LM(x_t | x_<t) p(c | x_1..t)^omega

    Of that, the tokens with the highest ``p(c | x_1..t)`` are kept until their mass is ``rho``, and all
    with ``p(c | x_1..t) > tau``.

    ``model`` is a causal LM of transformers with the same vocabulary, or an ``AdaptedLM``; ``conditions`` are
    the tokens that it reads first for each class, and ``wanted`` is the index of the class to write. One
    processor serves one batch; give the ``attention_mask`` of a batch that is padded on the left.

        conditions = [tokenizer(word).input_ids for word in ("negative", "positive")]
        model.generate(**inputs, do_sample=True, logits_processor=[GeDiProcessor(gedi, conditions, wanted=1)])
    """

    def __init__(
        self,
        model: Callable[..., Any],
        conditions: Sequence[Sequence[int]],
        wanted: int,
        omega: float = 30.0,
        rho: float = 0.2,
        tau: float = 0.8,
        scale: float = 1.0,
        attention_mask: Tensor | None = None,
    ) -> None:
        self.classes = [_ClassLM(model, condition, attention_mask) for condition in conditions]
        self.wanted = wanted
        self.omega, self.rho, self.tau, self.scale = omega, rho, tau, scale

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        desire = self.log_class(input_ids)
        weighted = (scores.log_softmax(dim=1) + self.omega * desire).log_softmax(dim=1)
        order = desire.masked_fill(weighted.isinf(), -torch.inf).argsort(dim=1, descending=True, stable=True)
        mass = weighted.exp().gather(1, order)
        before = mass.cumsum(dim=1) - mass
        kept = torch.zeros_like(desire, dtype=torch.bool).scatter(1, order, before < self.rho)
        kept |= desire > math.log(self.tau)
        return weighted.masked_fill(~kept, -torch.inf)

    def log_class(self, input_ids: Tensor) -> Tensor:
        """log p(wanted class | text so far and each next token): (rows, vocabulary)."""
        totals = torch.stack([item.log_likelihood(input_ids) for item in self.classes])
        length = self.classes[0].length + 1
        return (self.scale * totals / length[:, None]).log_softmax(dim=0)[self.wanted]


class _ClassLM:
    """log p(x_1..t | c) of a growing text, for every next token."""

    def __init__(self, model: Callable[..., Any], condition: Sequence[int], mask: Tensor | None) -> None:
        self.reader = Reader(model, mask, condition, keep=0)
        self.total: Tensor
        """log p of the text so far: (rows,)."""
        self.length: Tensor
        """Its tokens: (rows,)."""
        self.next: Tensor
        """log p of every next token: (rows, vocabulary)."""

    def log_likelihood(self, input_ids: Tensor) -> Tensor:
        logits, news = self.reader.read(input_ids)
        predicted = logits.log_softmax(dim=2)
        # What predicts each new token: the logits before it, for the first one those of the last call.
        own = predicted[:, :-1].gather(2, news.tokens[:, 1:, None]).squeeze(2) * news.text[:, 1:]
        if news.first:
            self.total, self.length = own.sum(dim=1), news.text.sum(dim=1)
        else:
            known = self.next.gather(1, news.tokens[:, :1]).squeeze(1)
            self.total = self.total + known + own.sum(dim=1)
            self.length = self.length + news.text.sum(dim=1)
        self.next = predicted[:, -1]
        return self.total[:, None] + self.next


class GeDi(LeftToRight):
    """Steers with one generative classifier.

    Args:
        model: ``generative`` checkpoint.
        label: the class to write.
        omega: how strongly it steers; 30 in the paper.
        rho: mass of the tokens that are kept for being the most telling; 0.2 in the paper (its code has
            ``filter_p`` 0.8, which is 1 - rho).
        tau: tokens beyond this probability of the class are always kept; 0.8 in the paper.
        scale: the paper's alpha, which sharpens p(class | text).
        nucleus: probability mass to sample from afterwards. The paper decodes greedily with a repetition
            penalty, which gives one text a prompt; 0.9 as in the comparison of DExperts (arXiv 2105.03023).
        batch_size: samples that are written together.
    """

    name = "gedi"

    def __init__(
        self,
        model: str,
        label: str,
        omega: float = 30.0,
        rho: float = 0.2,
        tau: float = 0.8,
        scale: float = 1.0,
        nucleus: float = 0.9,
        batch_size: int = 32,
    ) -> None:
        super().__init__(nucleus, 0, batch_size)
        self.model, self.label = model, label
        self.omega, self.rho, self.tau, self.scale = omega, rho, tau, scale

    def steering(self) -> list[str]:
        return [self.model]

    def steer(self, language_model: LanguageModel) -> Steer:
        adapted = load_adapted(self.model, "generative", language_model)
        wanted = label_index(self.model, self.label, adapted.config.labels)
        conditions = [language_model.encode(word) for word in adapted.config.label_words]

        def processors(requests: Sequence[Request], rows: Rows) -> list[LogitsProcessor]:
            settings = (self.omega, self.rho, self.tau, self.scale)
            return [GeDiProcessor(adapted, conditions, wanted, *settings, rows.text)]

        return processors
