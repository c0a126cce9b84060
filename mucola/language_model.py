"""The energy of a causal language model as a function of embeddings: -log P(e | x).

An encoder-decoder fits the same seam: whatever offers ``prefix``, ``nll`` and ``continuations``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.activations import NewGELUActivation

from mucola.attention import Groups, Prefix, shared_prefixes
from mucola.embeddings import EmbeddingTable, blocks, writable_tokens
from mucola.errors import MucolaError

if TYPE_CHECKING:
    from mucola.attribute_models import AdaptedLM

KEPT_PREFIXES = 512


class Written(NamedTuple):
    """Texts that were written from left to right, a row each."""

    tokens: Tensor
    """(rows, length)"""
    nll: Tensor
    """-log P of each, over the whole vocabulary: (rows,)."""


class LanguageModel:
    """A frozen causal LM, its tokenizer and its embedding table.

    Prompts are read once (``prefix``); every energy after that costs the continuation alone. Energies,
    projections and states are fp32 whatever the precision of the model.
    """

    def __init__(self, model: Any, tokenizer: Any, name: str = "", allowed: Tensor | None = None) -> None:
        self.model = _with_one_kernel_gelu(model.eval().requires_grad_(False))
        self.tokenizer = tokenizer
        self.name = name or getattr(model.config, "_name_or_path", "")
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        self._input_scale = float(getattr(embedding, "scalar_embed_scale", 1.0))
        self._output = head.weight.detach().float()
        self._bias = head.bias.detach().float() if getattr(head, "bias", None) is not None else None
        inputs = embedding.weight.detach()
        self._tied = inputs.data_ptr() == head.weight.data_ptr()
        rows = inputs if self._tied else torch.cat([inputs.float(), self._output], dim=1)
        if allowed is None:
            allowed = writable_tokens(tokenizer, len(rows))
        self.table = EmbeddingTable(rows, allowed, input_dim=inputs.shape[1])
        if self._tied:
            self._output = self.table.weight
        self._prefixes: dict[tuple[int, ...], Prefix] = {}
        self._weights: AdaptedLM | None = None
        self._check_against_own_loss()

    @property
    def device(self) -> torch.device:
        """Where the model's weights are."""
        return self._output.device

    @property
    def context(self) -> int:
        """The longest text the model can read, in tokens."""
        return int(getattr(self.model.config, "max_position_embeddings", 0) or 2**31)

    @cached_property
    def token_texts(self) -> list[str]:
        """The text of every token by itself."""
        ids = range(min(len(self.table), len(self.tokenizer)))
        return self.tokenizer.batch_decode([[i] for i in ids], clean_up_tokenization_spaces=False)

    @cached_property
    def starts_word(self) -> Tensor:
        """Which tokens cannot go on with the word before them: (vocabulary,), bool."""
        pieces = self.tokenizer.convert_ids_to_tokens(range(len(self.token_texts)))
        flags = torch.ones(len(self.table), dtype=torch.bool, device=self.device)
        for token, (piece, text) in enumerate(zip(pieces, self.token_texts, strict=True)):
            flags[token] = piece.startswith(("\u2581", "\u0120")) or not (text[:1].isalnum() or text[:1] == "_")
        return flags

    def adapted(self, weights: AdaptedLM) -> LanguageModel:
        """The same model with an attribute's weights: one table, one tokenizer, a memory of its own."""
        other = copy.copy(self)
        other.model, other._weights, other._prefixes = weights.lm, weights, {}
        return other

    # --- prompts -------------------------------------------------------------------------------------

    def encode(self, text: str) -> tuple[int, ...]:
        """The tokens of ``text``; an empty text is the model's beginning-of-text token."""
        tokens = tuple(self.tokenizer(text, add_special_tokens=False).input_ids)
        return tokens or (self._beginning(),)

    def _beginning(self) -> int:
        """What starts a document: many tokenizers have a chat marker as BOS and separate texts otherwise."""
        vocabulary = self.tokenizer.get_vocab()
        if "<|endoftext|>" in vocabulary:
            return vocabulary["<|endoftext|>"]
        for token in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id):
            if token is not None:
                return token
        raise MucolaError(f"{self.name} has no beginning-of-text token, so it needs a prompt that is not empty.")

    def prefix(self, tokens: Sequence[int]) -> Prefix:
        """The model's memory of a prompt, computed once; the oldest of many is forgotten."""
        tokens = tuple(tokens)
        if tokens not in self._prefixes:
            if len(self._prefixes) >= KEPT_PREFIXES:
                del self._prefixes[next(iter(self._prefixes))]
            with torch.no_grad():
                ids = torch.tensor([tokens], device=self.device)
                inputs = self.model.get_input_embeddings()(ids)
                output = self._run(inputs_embeds=inputs, use_cache=True, past_key_values=DynamicCache())
            layers = output.past_key_values.layers
            self._prefixes[tokens] = Prefix(
                tokens,
                [layer.keys[0] for layer in layers],
                [layer.values[0] for layer in layers],
                output.last_hidden_state[0, -1].float(),
            )
        return self._prefixes[tokens]

    # --- energy --------------------------------------------------------------------------------------

    def nll(self, embeddings: Tensor, tokens: Tensor, prefixes: Sequence[Prefix]) -> Tensor:
        """-log P(e | x) of each row: (rows, length, dim), (rows, length), a prefix a row -> (rows,).

        The continuous ``e_n`` stands in the numerator and in its own slot of the denominator,

            sum_n logsumexp_v(h_{n-1} . E_v, with h_{n-1} . e_n in place of v = y_n) - h_{n-1} . e_n,

        so at a table row it is the ordinary NLL and its direct gradient is -(1 - p_n) h_{n-1}.
        """
        return self.token_nll(embeddings, tokens, prefixes).sum(dim=1)

    def token_nll(self, embeddings: Tensor, tokens: Tensor, prefixes: Sequence[Prefix]) -> Tensor:
        """The summands of ``nll``: (rows, length)."""
        hidden = self._predicting(self.table.input_part(embeddings), prefixes)
        written = embeddings if self._tied else embeddings[..., self.table.input_dim :]
        own = (hidden * written).sum(dim=-1)
        row = (hidden * self._output[tokens]).sum(dim=-1)
        if self._bias is not None:
            own, row = own + self._bias[tokens], row + self._bias[tokens]
        total = _VocabularyLogSumExp.apply(hidden.flatten(0, 1), self._output, self._bias).view_as(own)
        # log(exp(total) - exp(row) + exp(own)), written so that it is exact where own = row.
        swap = (own - total).exp() - (row - total).exp()
        return total + torch.log1p(swap.clamp(min=-1 + 1e-6)) - own

    def score(self, tokens: Sequence[int], context: Sequence[int]) -> float:
        """-log P(tokens | context), without gradients."""
        if not tokens:
            return 0.0
        ids = torch.tensor([list(tokens)], device=self.device)
        with torch.no_grad():
            return self.nll(self.table.rows(ids), ids, [self.prefix(context)]).item()

    def _predicting(self, inputs: Tensor, prefixes: Sequence[Prefix]) -> Tensor:
        """The states that predict each token: the prompt's last one, then those of all tokens but the last."""
        first = torch.stack([prefix.hidden for prefix in prefixes])[:, None]
        if inputs.shape[1] == 1:
            return first
        order = sorted(range(len(prefixes)), key=lambda row: prefixes[row].tokens)
        back = torch.tensor(order, device=inputs.device).argsort()
        groups = _groups([prefixes[row] for row in order])
        later = self._continue(inputs[order, :-1], groups).last_hidden_state[back]
        return torch.cat([first, later.float()], dim=1)

    def _continue(self, inputs: Tensor, groups: Groups, **options: Any) -> Any:
        """Run the model on new input embeddings that stand after the groups' prefixes."""
        cache = options.get("past_key_values")
        done = cache.get_seq_length() if cache is not None else 0
        starts = torch.tensor([len(prefix) + done for prefix, count in groups for _ in range(count)])
        positions = starts[:, None] + torch.arange(inputs.shape[1])
        scaled = (inputs * self._input_scale).to(self.model.dtype)
        options.setdefault("use_cache", False)
        return self._run(inputs_embeds=scaled, position_ids=positions.to(self.device), groups=groups, **options)

    def _run(self, **inputs: Any) -> Any:
        with self._weights.active() if self._weights else nullcontext(), shared_prefixes(self.model):
            return self.model.base_model(**inputs)

    # --- ancestral samples ---------------------------------------------------------------------------

    def continuations(self, prefixes: Sequence[Prefix], uniforms: Tensor, nucleus: float) -> Written:
        """Nucleus samples of allowed tokens, one a row, as many tokens as ``uniforms`` has columns.

        The randomness is in ``uniforms`` (rows, length) alone, so a sample does not depend on its batch;
        ``nucleus`` 0 is greedy decoding.
        """
        uniforms = uniforms.to(self.device)
        return self.written(
            prefixes, uniforms.shape[1], lambda logits, position: nucleus_draw(logits, uniforms[:, position], nucleus)
        )

    @torch.no_grad()
    def written(self, prefixes: Sequence[Prefix], length: int, write: Callable[[Tensor, int], Tensor]) -> Written:
        """Texts written from left to right, one a row, by a function that chooses the next tokens.

        ``write`` gets the logits of allowed tokens, (rows, vocabulary), and the position.
        """
        reading = self.reading(prefixes)
        written: list[Tensor] = []
        nll = torch.zeros(len(prefixes), device=self.device)
        for position in range(length):
            if written:
                reading.read(written[-1])
            logits = reading.logits()
            tokens = write(logits.masked_fill(~self.table.allowed, -torch.inf), position)
            written.append(tokens)
            nll += logits.logsumexp(dim=1) - logits.gather(1, tokens[:, None]).squeeze(1)
        return Written(torch.stack(written, dim=1), nll)

    def reading(self, prefixes: Sequence[Prefix]) -> Reading:
        """Follow texts while they are written, each after its prefix."""
        return Reading(self, prefixes)

    def _logits(self, hidden: Tensor) -> Tensor:
        """(rows, hidden) to (rows, vocabulary)"""
        logits = hidden @ self._output.T
        return logits if self._bias is None else logits + self._bias

    # --- self-check ----------------------------------------------------------------------------------

    def _check_against_own_loss(self) -> None:
        """Refuse a model whose logits are not states times table, rather than sample from the wrong one."""
        allowed = self.table.allowed.nonzero().squeeze(1)
        ids = allowed[torch.linspace(0, len(allowed) - 1, 6).long()][None]
        with torch.no_grad():
            logits = self.model(input_ids=ids).logits[0, 1:-1].float()
            expected = torch.nn.functional.cross_entropy(logits, ids[0, 2:], reduction="sum").item()
        found = self.score(ids[0, 2:].tolist(), ids[0, :2].tolist())
        self._prefixes.clear()
        tolerance = 1e-3 if self.model.dtype == torch.float32 else 0.05
        if not abs(found - expected) <= tolerance * max(1.0, abs(expected)):
            raise MucolaError(
                f"{self.name or type(self.model).__name__} computes its logits in a way that this sampler does not "
                f"reproduce (NLL {found:.3f} against its own {expected:.3f}); GPT-2, Llama and GPT-NeoX types work."
            )


class Reading:
    """Texts that grow by a token at a time, a row each, as one language model sees them."""

    def __init__(self, language_model: LanguageModel, prefixes: Sequence[Prefix]) -> None:
        self._language_model = language_model
        self._order = sorted(range(len(prefixes)), key=lambda row: prefixes[row].tokens)
        self._back = torch.tensor(self._order, device=language_model.device).argsort()
        self._groups = _groups([prefixes[row] for row in self._order])
        self._cache = DynamicCache()
        self._hidden = torch.stack([prefixes[row].hidden for row in self._order])

    @torch.no_grad()
    def read(self, tokens: Tensor) -> None:
        """Every text goes on with its token: (rows,)."""
        model = self._language_model
        inputs = model.table.input_part(model.table.rows(tokens[self._order]))[:, None]
        output = model._continue(inputs, self._groups, past_key_values=self._cache, use_cache=True)
        self._hidden = output.last_hidden_state[:, -1].float()

    @torch.no_grad()
    def logits(self) -> Tensor:
        """Of what may come next: (rows, vocabulary)."""
        return self._language_model._logits(self._hidden[self._back])


class _VocabularyLogSumExp(torch.autograd.Function):
    """logsumexp_v(h . E_v + b_v) without keeping a (rows, vocabulary) buffer.

    Its gradient with respect to h is the expected row, sum_v p_v E_v, found block by block on the way
    forward, so that nothing of the size of the vocabulary waits for the backward pass, and each part of
    the table is read from memory once.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, table: Tensor, bias: Tensor | None) -> Tensor:
        total, mean = hidden.new_full((len(hidden),), -torch.inf), torch.zeros_like(hidden)
        for block in blocks(table, len(hidden)):
            part = table[block]
            logits = hidden @ part.T if bias is None else torch.addmm(bias[block], hidden, part.T)
            before, total = total, torch.logaddexp(total, logits.logsumexp(dim=1))
            if ctx.needs_input_grad[0]:
                mean.mul_((before - total).exp()[:, None]).addmm_(logits.sub_(total[:, None]).exp_(), part)
        ctx.save_for_backward(mean)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (mean,) = ctx.saved_tensors
        return gradients[0][:, None] * mean, None, None


def _with_one_kernel_gelu(model: Any) -> Any:
    """GPT-2 writes its GELU as eight operations that keep what lies between them; the same function is one."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, nn.GELU("tanh"))
    return model


def _groups(prefixes: Sequence[Prefix]) -> list[tuple[Prefix, int]]:
    groups: list[tuple[Prefix, int]] = []
    for prefix in prefixes:
        if groups and groups[-1][0] is prefix:
            groups[-1] = (prefix, groups[-1][1] + 1)
        else:
            groups.append((prefix, 1))
    return groups


HEAD = 4096
"""Of the vocabulary: the likeliest tokens, which nearly always hold the nucleus; only they are put in order."""


class Nucleus(NamedTuple):
    """The shortest head of the vocabulary whose mass reaches a given one; it always has one token."""

    probabilities: Tensor
    """Of the likeliest tokens, in order: (rows, head)."""
    tokens: Tensor
    """Their ids."""
    cumulative: Tensor
    size: Tensor
    """How many of them are in the nucleus, less one: (rows, 1)."""

    @classmethod
    def of(cls, logits: Tensor, mass: float, head: int = HEAD) -> Nucleus:
        """Of (rows, vocabulary); one that reaches beyond the ``head`` ends there."""
        probabilities, tokens = logits.softmax(dim=1).topk(min(head, logits.shape[1]), dim=1)
        cumulative = probabilities.cumsum(dim=1)
        size = (cumulative < mass).sum(dim=1, keepdim=True).clamp(max=tokens.shape[1] - 1)
        return cls(probabilities, tokens, cumulative, size)

    @property
    def log_probabilities(self) -> Tensor:
        """Of the tokens within it alone, -inf of the others: (rows, head)."""
        outside = torch.arange(self.tokens.shape[1], device=self.tokens.device) > self.size
        return self.probabilities.log().masked_fill(outside, -torch.inf).log_softmax(dim=1)


def nucleus_draw(logits: Tensor, uniforms: Tensor, nucleus: float, head: int = HEAD) -> Tensor:
    """One token a row by inverting the cumulative distribution of the nucleus at ``uniforms``.

    Only the ``head`` of the vocabulary is put in order, the rest where a nucleus reaches beyond it.
    """
    probabilities, tokens, cumulative, size = Nucleus.of(logits, nucleus, head)
    target = uniforms[:, None] * cumulative.gather(1, size)
    chosen = (cumulative <= target).sum(dim=1, keepdim=True).clamp(max=size)
    drawn = tokens.gather(1, chosen).squeeze(1)
    beyond = (cumulative[:, -1] < nucleus) & (probabilities[:, -1] > 0)
    if head < logits.shape[1] and beyond.any():
        drawn[beyond] = nucleus_draw(logits[beyond], uniforms[beyond], nucleus, logits.shape[1])
    return drawn
