"""A run: prompts times samples, made by whichever rank is free, each on disk as soon as it is finished."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from decoding.continuation import Continued
from decoding.crew import Counts, Crew
from decoding.folder import RunFolder
from decoding.lengths import BestLength
from decoding.methods import Decoder, Method
from decoding.prompts import Entry
from mucola.constraints import Constraint, parse_all
from mucola.errors import MucolaError
from mucola.language_model import LanguageModel
from mucola.pool import Request
from mucola.prompts import Prompt
from mucola.sampler import Sample

TRACES = "traces"


@dataclass
class Plan:
    """What is to be made."""

    entries: Sequence[Entry]
    method: Method
    constraints: Sequence[str] = ()
    """For every prompt, beside the words that a prompt asks for itself."""
    num_samples: int = 1
    lengths: Sequence[int] = (20,)
    """Tokens under constraints; of several lengths the best text is kept."""
    continue_to: int | None = None
    nucleus: float = 0.96
    """Of what follows the constrained tokens."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise MucolaError(f"The number of samples must be at least 1, not {self.num_samples}.")
        if not self.lengths or min(self.lengths) < 1:
            raise MucolaError(f"The length of a sample must be at least 1 token, not {list(self.lengths)}.")
        if self.continue_to is not None and self.continue_to < max(self.lengths):
            raise MucolaError(
                f"Samples of {max(self.lengths)} tokens cannot be continued to {self.continue_to}; "
                "make continue_to larger, or leave it out."
            )
        self._common = parse_all(self.constraints)
        self._places = {entry.id: place for place, entry in enumerate(self.entries)}

    def __len__(self) -> int:
        """How many samples there are in the end."""
        return len(self.entries) * self.num_samples

    def place(self, prompt_id: str, sample: int) -> int:
        """The number of a sample in the plan; the samples of a prompt follow one another, to share its memory."""
        return self._places[prompt_id] * self.num_samples + sample

    def prepare(self, language_model: LanguageModel) -> None:
        """Load what the constraints need, and refuse what cannot be done, before anything is written."""
        Request(Prompt.of("", language_model), max(self.lengths), self._common).prepare(language_model)
        for entry in self.entries:
            try:
                total = self.continue_to or max(self.lengths)
                Prompt.of(entry.text, language_model, entry.id).require_room(total, language_model)
            except MucolaError as error:
                raise MucolaError(f"Prompt {entry.id} ({entry.text[:40]!r}): {error}") from error

    def decoder(self, language_model: LanguageModel, most: int) -> Decoder:
        """The method with lengths and continuation around it, taking no more than ``most`` requests at a time."""
        decoder = self.method.sharing(most * len(set(self.lengths))).decoder(language_model)
        if len(set(self.lengths)) > 1:
            decoder = BestLength(decoder, language_model, self.lengths)
        if self.continue_to is not None:
            decoder = Continued(decoder, language_model, self.continue_to, self.nucleus)
        return decoder

    def requests(self, places: Iterator[int], language_model: LanguageModel) -> Iterator[Request]:
        """The requests at ``places``; those of one prompt share its constraints."""

        @lru_cache(maxsize=64)
        def start(index: int) -> tuple[Prompt, list[Constraint]]:
            entry = self.entries[index]
            prompt = Prompt.of(entry.text, language_model, entry.id)
            return prompt, parse_all([*self._common, *entry.constraints()])

        for place in places:
            index, sample = divmod(place, self.num_samples)
            prompt, constraints = start(index)
            request = Request(prompt, max(self.lengths), constraints, sample)
            try:
                request.prepare(language_model)
            except MucolaError as error:
                raise MucolaError(f"Prompt {prompt.id} ({prompt.text[:40]!r}): {error}") from error
            yield request


def missing(plan: Plan, folder: RunFolder, info: dict[str, object]) -> tuple[list[int], Counts]:
    """Rank 0: the places that are not on disk yet, and the counts of those that are."""
    done, counts = set(), Counts()
    for prompt_id, sample, count in folder.open(info):
        done.add(plan.place(prompt_id, sample))
        counts += count
    return [place for place in range(len(plan)) if place not in done], counts


def work(plan: Plan, places: Sequence[int], folder: RunFolder, crew: Crew, language_model: LanguageModel) -> None:
    """One rank's part: take what is next, write what is finished."""
    decoder = plan.decoder(language_model, most=-(-len(places) // crew.size))
    mine = (places[number] for number in crew.take(len(places)))
    entries = {entry.id: entry for entry in plan.entries}
    with folder.writer(crew.rank) as writer:
        for generation in decoder.run(plan.requests(mine, language_model), plan.seed):
            entry = entries[generation.prompt_id]
            generation.keywords = list(entry.keywords) or None
            generation.terms = list(entry.terms) or None
            generation.reference = entry.reference
            if isinstance(generation, Sample) and generation.traces:
                generation.trace = _save_trace(generation, folder.path)
            writer.write(generation)
            crew.count(Counts.of(generation))


def _save_trace(sample: Sample, folder: Path) -> str:
    """Keep every chain of a sample; the last one is the one that made it."""
    for trace in sample.traces:
        prompt = re.sub(r"[^\w.-]", "_", sample.prompt_id)
        name = f"{TRACES}/{prompt}-{sample.sample}-{len(trace.steps[0].tokens)}-{trace.restart}.json.gz"
        trace.save(folder / name)
    return name
