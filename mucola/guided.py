"""Guided drafts: texts that the language model writes while constraints lead it on.

Where a constraint asks for much, hardly a plain sample satisfies it. A pair of language models, though, says of every
next token how much it helps, so a draft can be drawn from

    q(y_t) ~ P(y_t) exp(s a(y_t)),        y_t in the nucleus of P, a: the advice, s: a strength,

as DExperts and GeDi do. Here that is a proposal: its weight P(y) / q(y) tells how likely the language model alone would
have been to write it, and of the drafts that satisfy everything one is taken with a probability in proportion to its
weight (importance resampling). The more drafts there are, the closer that comes to an exact sample of the constrained
LM. Each draft has a strength of its own, for how much is needed depends on the prompt; weights favour the gentlest that
is enough.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mucola.constraints.base import ruled_out
from mucola.language_model import LanguageModel, Nucleus, Written
from mucola.pool import Request

STRONGEST = 2.0
"""At first drafts are led by up to twice what the advice says."""
NEVER = -1e4
"""Advice against a token that no satisfying text can hold."""


def wants_guiding(request: Request) -> bool:
    """Whether drafts can be led towards what the request asks for."""
    return any(item.guides for item in request.constraints)


def guided_draft(
    language_model: LanguageModel,
    requests: Sequence[Request],
    uniforms: Sequence[Tensor],
    strengths: Tensor,
    nucleus: float,
) -> tuple[Written, Tensor]:
    """One draft for each request, and their log weights: (rows,).

    The requests have one length and the same constraints that guide; ``uniforms`` are (length,) each, ``strengths``
    (rows,).
    """
    drawn = torch.stack(list(uniforms)).to(language_model.device)
    strength = strengths.to(language_model.device)[:, None]
    prompts = [request.prompt for request in requests]
    guides = [item.guide(prompts) for item in requests[0].constraints if item.guides]
    banned = [ruled_out(request.constraints) for request in requests]
    weights = drawn.new_zeros(len(requests))

    def write(logits: Tensor, position: int) -> Tensor:
        advice = torch.stack([guide.advice() for guide in guides]).sum(dim=0)
        for row, ids in enumerate(banned):
            if ids is not None:
                advice[row, ids] = NEVER
        head = Nucleus.of(logits, nucleus)
        plain = head.log_probabilities
        led = (plain + strength * advice.gather(1, head.tokens)).log_softmax(dim=1)
        cumulative = led.exp().cumsum(dim=1)
        target = drawn[:, position, None] * cumulative[:, -1:]
        chosen = (cumulative <= target).sum(dim=1, keepdim=True).clamp(max=head.size)
        weights.add_((plain - led).gather(1, chosen).squeeze(1))
        tokens = head.tokens.gather(1, chosen).squeeze(1)
        for guide in guides if position + 1 < drawn.shape[1] else ():
            guide.read(tokens)
        return tokens

    prefixes = [language_model.prefix(prompt.tokens) for prompt in prompts]
    return language_model.written(prefixes, drawn.shape[1], write), weights
