"""The data module: labelled texts in the tokens of the language model."""

from __future__ import annotations

import logging
from typing import Any

import lightning
from datasets import Dataset
from torch.utils.data import DataLoader

from constraints_training.batches import LengthBatches, ResumableLoader, collate
from constraints_training.sources import Source
from constraints_training.texts import (
    Texts,
    balanced,
    class_names,
    read,
    require_every_class,
    shuffled,
    split_off,
)
from mucola import model_store
from mucola.errors import MucolaError
from mucola.names import unknown
from mucola.packages import quiet_transformers

log = logging.getLogger(__name__)


class TextData(lightning.LightningDataModule):
    """Labelled texts for training, development and test.

    Args:
        lm: the language model whose tokens the texts are written in: a built-in name, folder or hub id.
        labels: what stands in the label column, and the name of its class, e.g. ``{"0": negative, "1": positive}``.
        train: where the training texts come from.
        dev: the development texts; by default a share of the training source, by seed.
        test: the test texts; by default a share of the training source if ``test_share`` is above 0.
        dev_share: share of the training source kept for development when ``dev`` is not given.
        test_share: share of the training source kept for test when ``test`` is not given.
        batch_size: texts in a batch, over all devices together.
        max_length: tokens beyond this are cut off.
        limit: use no more than this many training texts, drawn by seed.
        dev_limit: use no more than this many development texts, drawn by seed.
        balance: use as many texts of every class as the smallest class has.
        only: keep the texts of this class alone (to train a class language model).
        natural: rewrite lower-cased, pre-tokenised text the way people write.
        seed: what splits, draws and the order of batches depend on.
        workers: processes that prepare batches.
    """

    def __init__(
        self,
        lm: str,
        labels: dict[str, str],
        train: Source,
        dev: Source | None = None,
        test: Source | None = None,
        dev_share: float = 0.05,
        test_share: float = 0.0,
        batch_size: int = 64,
        max_length: int = 64,
        limit: int | None = None,
        dev_limit: int | None = None,
        balance: bool = False,
        only: str | None = None,
        natural: bool = False,
        seed: int = 0,
        workers: int = 0,
    ) -> None:
        super().__init__()
        if len(class_names(labels)) < 2:
            raise MucolaError("labels must name at least two classes, e.g. {'0': negative, '1': positive}.")
        if only is not None and only not in labels.values():
            raise unknown("class", only, labels.values())
        if batch_size < 1 or max_length < 2:
            raise MucolaError("batch_size must be at least 1 and max_length at least 2.")
        self.lm, self.labels, self.sources = lm, labels, {"train": train, "dev": dev, "test": test}
        self.shares = {"dev": dev_share, "test": test_share}
        self.batch_size, self.max_length = batch_size, max_length
        self.limits = {"train": limit, "dev": dev_limit, "test": None}
        self.balance, self.only, self.natural, self.seed, self.workers = balance, only, natural, seed, workers
        self.texts: dict[str, Texts] = {}
        self._encoded: dict[str, Dataset] = {}
        self._train_loader: ResumableLoader | None = None
        self._position: dict[str, int] | None = None

    def setup(self, stage: str | None = None) -> None:
        """Read, split and balance the texts, once."""
        if self.texts:
            return
        splits = {"train": self._read("train")}
        for name in ("test", "dev"):
            if self.sources[name] is not None:
                splits[name] = self._read(name)
            elif self.shares[name] > 0:
                splits["train"], splits[name] = split_off(splits["train"], self.shares[name], self.seed)
        for name, texts in splits.items():
            require_every_class(texts, self.labels, name)
            splits[name] = self._chosen(name, texts)
        if len(splits["train"]) < self.batch_size:
            raise MucolaError(
                f"There are {len(splits['train'])} training texts, fewer than one batch of {self.batch_size}."
            )
        self.texts = splits

    def _read(self, name: str) -> Texts:
        source = self.sources[name]
        assert source is not None
        texts = read(source, self.labels, self.natural)
        for reason, count in sorted(texts.skipped.items()):
            log.warning("%s: %d of %d rows skipped: %s", source.path, count, count + len(texts), reason)
        return texts

    def _chosen(self, name: str, texts: Texts) -> Texts:
        if self.only is not None:
            wanted = class_names(self.labels).index(self.only)
            texts = texts.pick([row for row, label in enumerate(texts.dataset["label"]) if label == wanted])
        elif self.balance and name == "train":
            texts = balanced(texts, self.seed)
        limit = self.limits[name]
        if limit is not None and limit < len(texts):
            texts = texts.pick(shuffled(len(texts), self.seed)[:limit])
        return texts

    def encoded(self, name: str) -> Dataset:
        """Columns ``tokens`` and ``label`` of a split."""
        if name not in self._encoded:
            self._encoded[name] = encode(self.texts[name], self.lm, self.max_length)
        return self._encoded[name]

    def train_dataloader(self) -> DataLoader:
        """Shuffled batches of similar length, from where a resumed run stopped."""
        loader = self._loader("train", shuffle=True)
        assert isinstance(loader, ResumableLoader)
        if self._position is not None:
            loader.load_state_dict(self._position)
            self._position = None
        self._train_loader = loader
        return loader

    # Lightning itself would restore a loader, but not one that was asked for the length of the schedule before.
    def state_dict(self) -> dict[str, int]:
        """How far into the epoch the training is, for checkpoints."""
        return self._train_loader.state_dict() if self._train_loader else {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Remember where to go on."""
        self._position = state or None

    def val_dataloader(self) -> DataLoader:
        """The development texts, shortest first."""
        return self._loader("dev", shuffle=False)

    def test_dataloader(self) -> DataLoader:
        """The test texts, shortest first."""
        if "test" not in self.texts:
            raise MucolaError("There are no test data: set data.test, or data.test_share above 0.")
        return self._loader("test", shuffle=False)

    def _loader(self, name: str, shuffle: bool) -> DataLoader:
        world = self.trainer.world_size if self.trainer else 1
        rank = self.trainer.global_rank if self.trainer else 0
        if self.batch_size % world:
            raise MucolaError(f"batch_size {self.batch_size} is not a multiple of the {world} devices.")
        rows = self.encoded(name).to_list()
        lengths = [len(row["tokens"]) for row in rows]
        batches = LengthBatches(lengths, self.batch_size, self.seed, shuffle, rank, world)
        kind = ResumableLoader if shuffle else DataLoader
        return kind(rows, batch_sampler=batches, collate_fn=collate, num_workers=self.workers)

    @property
    def description(self) -> dict[str, Any]:
        """What was trained and measured on, for the record."""
        return {
            name: {
                "source": (self.sources[name] or self.sources["train"]).path,  # type: ignore[union-attr]
                "texts": len(texts),
                "skipped_rows": dict(texts.skipped),
                "fingerprint": texts.fingerprint,
            }
            for name, texts in self.texts.items()
        }


def encode(texts: Texts, lm: str, max_length: int) -> Dataset:
    """The texts in the tokens of a language model, cut at ``max_length``: columns ``tokens`` and ``label``."""
    from transformers import AutoTokenizer

    with quiet_transformers():
        tokenizer = AutoTokenizer.from_pretrained(model_store.resolve(lm))
    options = {"add_special_tokens": False, "truncation": True, "max_length": max_length}
    tokens = tokenizer(list(texts.dataset["text"]), **options)["input_ids"]
    rows = [(text, label) for text, label in zip(tokens, texts.dataset["label"], strict=True) if text]
    return Dataset.from_dict({"tokens": [text for text, _ in rows], "label": [label for _, label in rows]})
