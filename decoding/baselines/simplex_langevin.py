"""Langevin dynamics on the vocabulary simplex with fixed weights: what MuCoLa's embeddings and multipliers replace.

The state of a chain is a logit for every token of the vocabulary at every place, (length, vocabulary), and

    E = -log P(e | x) + sum_i weight * f_i(e),        e_n = sum_v softmax(logits_n / temperature)_v E_v,

the same functions of embeddings that MuCoLa uses. This is the vocabulary-sized representation that its paper
compares speed and memory with, close to COLD (Qin et al. 2022, arXiv 2202.11705).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from decoding.baselines.batches import Baseline, Write
from mucola.constraints import Constraint
from mucola.errors import MucolaError
from mucola.language_model import LanguageModel
from mucola.pool import Request
from mucola.prompts import Sequences
from mucola.randomness import stream


class SimplexLangevin(Baseline):
    """Fixed weights, soft tokens, and the likeliest token of each place at the end.

    Args:
        steps: gradient steps; COLD takes 2,000 for its best results.
        weight: what each constraint's value counts against the nats of the language model.
        step_size: how far a step goes along the gradient of the logits, which is scaled to norm 1 at each place.
        noise: standard deviation of the Gaussian noise on the logits at the first step; it falls to a hundredth
            of that in geometric progression.
        temperature: of the softmax; below 1 the soft tokens are nearer to single tokens, and move less.
        nucleus: chains begin at the language model's own logits along a nucleus sample of this mass.
        batch_size: chains that advance together.
    """

    name = "simplex_langevin"

    def __init__(
        self,
        steps: int = 200,
        weight: float = 10.0,
        step_size: float = 1.0,
        noise: float = 0.1,
        temperature: float = 1.0,
        nucleus: float = 0.96,
        batch_size: int = 8,
    ) -> None:
        super().__init__(batch_size)
        for setting, value, least in (("steps", steps, 1), ("weight", weight, 0), ("noise", noise, 0)):
            if value < least:
                raise MucolaError(f"{setting} must be at least {least}, not {value}.")
        if step_size <= 0 or temperature <= 0:
            raise MucolaError("step_size and temperature must be above 0.")
        self.steps, self.weight, self.step_size, self.noise = steps, weight, step_size, noise
        self.temperature, self.nucleus = temperature, nucleus

    def writer(self, language_model: LanguageModel) -> Write:
        def write(requests: Sequence[Request], seed: int) -> Tensor:
            streams = [stream(seed, item.prompt.id, item.sample, self.name) for item in requests]
            return self.descend(language_model, requests, streams).argmax(dim=2)

        return write

    def descend(
        self, language_model: LanguageModel, requests: Sequence[Request], streams: Sequence[torch.Generator]
    ) -> Tensor:
        """The logits after the last step: (rows, length, vocabulary)."""
        logits = self.start(language_model, requests, streams)
        for step in range(self.steps):
            gradient = self.energy(language_model, requests, logits)[1]
            gradient = gradient / gradient.norm(dim=2, keepdim=True).clamp(min=1e-12)
            noise = self.noise * 0.01 ** (step / self.steps)
            drawn = torch.stack([torch.randn(logits.shape[1:], generator=generator) for generator in streams])
            logits = logits - self.step_size * gradient + noise * drawn.to(logits.device)
        return logits

    @torch.no_grad()
    def start(
        self, language_model: LanguageModel, requests: Sequence[Request], streams: Sequence[torch.Generator]
    ) -> Tensor:
        """The language model's logits along a nucleus sample, that token raised to the top: (rows, length, vocabulary).

        Tokens that a text may not hold are at -inf, where no gradient reaches them.
        """
        uniforms = torch.stack([torch.rand(requests[0].length, generator=generator) for generator in streams])
        prefixes = [language_model.prefix(request.prompt.tokens) for request in requests]
        tokens = language_model.continuations(prefixes, uniforms, self.nucleus).tokens
        rows = []
        for request, written in zip(requests, tokens, strict=True):
            read = torch.cat([torch.tensor(request.prompt.tokens, device=written.device), written[:-1]])
            output = language_model.model(input_ids=read[None], use_cache=False, logits_to_keep=len(written))
            logits = output.logits[0].float().masked_fill(~language_model.table.allowed, -torch.inf)
            rows.append(logits.scatter(1, written[:, None], logits.amax(dim=1, keepdim=True)))
        return torch.stack(rows)

    def energy(
        self, language_model: LanguageModel, requests: Sequence[Request], logits: Tensor
    ) -> tuple[Tensor, Tensor]:
        """E of each row and its gradient with respect to the logits: (rows,), (rows, length, vocabulary)."""
        logits = logits.detach().requires_grad_(True)
        with torch.enable_grad():
            embeddings = (logits / self.temperature).softmax(dim=2) @ language_model.table.weight
            prompts, tokens = [request.prompt for request in requests], logits.detach().argmax(dim=2)
            soft = Sequences(language_model, prompts, tokens, embeddings)
            energy = language_model.nll(embeddings, tokens, soft.prefixes())
            (gradient,) = torch.autograd.grad(energy.sum(), embeddings, retain_graph=True)
            energy, gradient = energy.detach(), gradient.clone()
            soft.embeddings = embeddings.detach()
            for constraint, rows in _by_constraint(requests):
                found = constraint.evaluate(
                    soft.select(rows), torch.ones(len(rows), dtype=torch.bool, device=logits.device)
                )
                energy[rows] += self.weight * found.values
                gradient[rows] += self.weight * found.gradients
            # Some constraints give a gradient of their own, so it enters here rather than through their value.
            (by_logits,) = torch.autograd.grad(embeddings, logits, gradient)
        return energy, by_logits


def _by_constraint(requests: Sequence[Request]) -> list[tuple[Constraint, list[int]]]:
    """Each constraint with the rows that have it."""
    rows: dict[int, tuple[Constraint, list[int]]] = {}
    for row, request in enumerate(requests):
        for item in request.constraints:
            rows.setdefault(id(item), (item, []))[1].append(row)
    return list(rows.values())
