"""What the trainings of all attribute models share: the frozen table, optimiser, metrics, history."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import lightning
import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from constraints_training.metrics import classification
from mucola.errors import MucolaError

HISTORY_EVERY = 10
"""Steps between the points of the learning curve."""


class AttributeTraining(lightning.LightningModule, ABC):
    """Base of the trainings. A subclass builds its network, gives a loss, and writes its checkpoint.

    Args:
        lm: the language model the attribute model is for: a built-in name, folder or hub id.
        labels: names of the classes.
        learning_rate: peak of the learning rate.
        warmup: share of all steps in which the learning rate rises from 0; after that it falls linearly to 0.
        weight_decay: AdamW's, on matrices only.
        seed: what dropout depends on, together with step and device.
    """

    one_loss: ClassVar[bool] = True
    """Whether the loss on development texts is the one that is trained; else their curves are drawn apart."""

    def __init__(
        self,
        lm: str,
        labels: list[str],
        learning_rate: float,
        warmup: float = 0.06,
        weight_decay: float = 0.01,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not 0 <= warmup <= 1 or learning_rate <= 0:
            raise MucolaError("learning_rate must be above 0, and warmup a share of the steps between 0 and 1.")
        self.lm_name, self.labels = lm, list(labels)
        self.learning_rate, self.warmup, self.weight_decay, self.seed = learning_rate, warmup, weight_decay, seed
        self.history: list[dict[str, float]] = []
        # Only trained weights are in a checkpoint; the frozen ones come from the language model.
        self.strict_loading = False

    @abstractmethod
    def build(self) -> None:
        """Make the network."""

    @abstractmethod
    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        """The training loss of a batch: a mean over its texts."""

    @abstractmethod
    def export(self, folder: Path) -> None:
        """Write the checkpoint folder that :func:`mucola.attribute_models.load_attribute_model` reads."""

    def configure_model(self) -> None:
        """Called by Lightning, also for validation and test; the network is made once."""
        if not hasattr(self, "network"):
            self.build()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        # Dropout depends on step and device alone, so a resumed run repeats what an unbroken one does.
        step = self.trainer.fit_loop.epoch_loop.total_batch_idx
        torch.manual_seed((self.seed * 1_000_003 + step) * 1_009 + self.global_rank)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("train_loss", loss, prog_bar=True, batch_size=len(batch["labels"]), sync_dist=True)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.global_step % HISTORY_EVERY == 0:
            self.history.append({"step": self.global_step, "train_loss": outputs["loss"].item()})

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        self.measure(batch, "dev")

    def test_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        self.measure(batch, "test")

    def measure(self, batch: dict[str, Tensor], part: str) -> None:
        """Log what is measured on a batch of the data's ``part``: its loss."""
        self.log(f"{part}_loss", self.loss(batch), on_epoch=True, batch_size=len(batch["labels"]), sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking and self.trainer.state.fn == "fit":
            measured = {name: value.item() for name, value in self.trainer.callback_metrics.items()}
            dev = {name: value for name, value in measured.items() if name.startswith("dev_")}
            self.history.append({"step": self.global_step, **dev})

    def configure_optimizers(self) -> Any:
        trained = [weight for weight in self.parameters() if weight.requires_grad]
        matrices = {"params": [weight for weight in trained if weight.ndim > 1], "weight_decay": self.weight_decay}
        vectors = {"params": [weight for weight in trained if weight.ndim <= 1], "weight_decay": 0.0}
        optimizer: Optimizer = AdamW([matrices, vectors], lr=self.learning_rate, fused=True)
        steps = int(self.trainer.estimated_stepping_batches)
        rising = max(1, round(self.warmup * steps))

        def rate(step: int) -> float:
            return (step + 1) / rising if step < rising else max(0.0, (steps - step) / max(1, steps - rising))

        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": LambdaLR(optimizer, rate), "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        trained = {name for name, weight in self.named_parameters() if weight.requires_grad}
        checkpoint["state_dict"] = {name: w for name, w in checkpoint["state_dict"].items() if name in trained}
        checkpoint["history"] = self.history

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        # A resumed run takes its history over; one that looks back at its best checkpoint keeps its own.
        self.history = self.history or list(checkpoint["history"])


class ClassifyingTraining(AttributeTraining):
    """Training of a model that tells classes apart: accuracy and its kin are measured."""

    @abstractmethod
    def logits(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Class logits (texts, classes) of whole texts."""

    def configure_model(self) -> None:
        if not hasattr(self, "metrics"):
            parts = {part: classification(self.labels, prefix=f"{part}_") for part in ("dev", "test")}
            self.metrics = torch.nn.ModuleDict(parts)
        super().configure_model()

    def measure(self, batch: dict[str, Tensor], part: str) -> None:
        """Log the loss of telling apart, and keep what the part's metrics need."""
        logits = self.logits(batch["tokens"], batch["mask"]).float()
        self._metrics(part).update(logits.softmax(dim=-1), batch["labels"])
        loss = torch.nn.functional.cross_entropy(logits, batch["labels"])
        self.log(f"{part}_loss", loss, on_epoch=True, batch_size=len(logits), sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        self._log_metrics("dev")
        super().on_validation_epoch_end()

    def on_test_epoch_end(self) -> None:
        self._log_metrics("test")

    def _log_metrics(self, part: str) -> None:
        self.log_dict(self._metrics(part).compute())
        self._metrics(part).reset()

    def _metrics(self, part: str) -> Any:
        return self.metrics[part]
