"""A plain loop in the manner of the code that was published with the paper, to compare with.

One chain. Weights receive gradients that nobody uses. The prompt is read anew at every step, logits are computed at
every place of prompt and continuation, and the nearest tokens come from a matrix of distances. Every step is
evaluated, whether the tokens have changed or not. The mathematics is ours, so that the two can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from benchmarks.models import with_gradients, with_transformers_gelu
from mucola.attribute_models import EmbeddingClassifier
from mucola.langevin import Dynamics
from mucola.language_model import LanguageModel


class PublishedLoop:
    """A chain under ``-log p(label | continuation) <= threshold``."""

    def __init__(
        self,
        language_model: LanguageModel,
        classifier: EmbeddingClassifier,
        label: int,
        threshold: float,
        prompt: Sequence[int],
        dynamics: Dynamics,
    ) -> None:
        self.model = with_transformers_gelu(with_gradients(language_model.model))
        self.classifier = with_gradients(classifier)
        self.label, self.threshold, self.dynamics = label, threshold, dynamics
        self.table: Tensor = self.model.get_input_embeddings().weight
        self.allowed = language_model.table.allowed
        self.prompt = torch.tensor([list(prompt)])

    def start(self, tokens: Tensor, seed: int) -> None:
        """Begin at ``tokens`` (length,)."""
        self.tokens = tokens[None]
        self.embeddings = nn.Parameter(self.table.detach()[self.tokens])
        self.generator = torch.Generator().manual_seed(seed)
        self.multiplier, self.steps = 0.0, 0

    def step(self) -> None:
        """Evaluate, move, project."""
        value, energy = self._energy()
        self.embeddings.grad = None
        energy.backward()
        gradient = self.embeddings.grad
        assert gradient is not None
        eta = self.dynamics.step_size.start
        beta = float(self.dynamics.noise.at(torch.tensor([self.steps])))
        noise = torch.randn(gradient.shape, generator=self.generator)
        with torch.no_grad():
            moved = self.embeddings - eta * gradient + math.sqrt(2 * eta * beta) * noise
            distances = torch.cdist(moved[0], self.table).masked_fill(~self.allowed, torch.inf)
            self.tokens = distances.argmin(dim=1)[None]
            self.embeddings.data = self.table[self.tokens]
        self.steps += 1
        if self.steps % self.dynamics.ascent.period == 0:
            self.multiplier = max(0.0, self.multiplier + self.dynamics.ascent.rate * (value - self.threshold))

    def _energy(self) -> tuple[float, Tensor]:
        """The constraint's value, and the Lagrangian."""
        before = self.prompt.shape[1]
        inputs = torch.cat([self.table[self.prompt], self.embeddings], dim=1)
        output = self.model(inputs_embeds=inputs, output_hidden_states=True, use_cache=False)
        predicting, logits = output.hidden_states[-1][:, before - 1 : -1], output.logits[:, before - 1 : -1]
        own = (predicting * self.embeddings).sum(dim=-1)
        nll = (logits.scatter(2, self.tokens[..., None], own[..., None]).logsumexp(dim=-1) - own).sum()
        f = -self.classifier(self.embeddings).log_softmax(dim=-1)[0, self.label]
        room = self.threshold - f.item()
        weight = max(0.0, self.multiplier - self.dynamics.ascent.damping * room)
        return f.item(), nll - weight * (self.threshold - f)

    def run(self, steps: int) -> None:
        """So many steps; the gradients of the weights, which pile up meanwhile, are thrown away at the end."""
        for _ in range(steps):
            self.step()
        self.model.zero_grad(set_to_none=True)
        self.classifier.zero_grad(set_to_none=True)
