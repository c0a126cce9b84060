"""``mucola train fit | validate | test | report``."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from constraints_training.base import AttributeTraining
from constraints_training.data import TextData
from constraints_training.export import export
from constraints_training.texts import class_names


def command(arguments: Sequence[str]) -> None:
    """Entry point of ``mucola train``."""
    if arguments and arguments[0] == "report":
        from constraints_training.report import command as report

        report(arguments[1:])
        return
    _quiet()
    TrainCLI(
        AttributeTraining,
        TextData,
        subclass_mode_model=True,
        seed_everything_default=0,
        auto_configure_optimizers=False,
        # Batches are dealt to the devices by the data module itself, so that their number changes nothing.
        trainer_defaults={"max_epochs": 3, "use_distributed_sampler": False},
        save_config_kwargs={"overwrite": True},
        parser_kwargs={
            "prog": "mucola train",
            "description": "Train and test attribute models; `report CKPT` tells how good one is.",
        },
        args=list(arguments),
    )


class TrainCLI(LightningCLI):
    """Lightning's command line with what every training here has.

    Under ``trainer.default_root_dir`` a run writes ``logs/`` (CSV and TensorBoard), ``checkpoints/``
    (the best, and the last for ``--ckpt_path last``) and ``export/`` (what ``mucola`` loads).
    """

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_lightning_class_args(ModelCheckpoint, "best")
        parser.set_defaults({"best.monitor": "dev_accuracy", "best.mode": "max", "best.filename": "best"})
        parser.set_defaults({"best.enable_version_counter": False})
        parser.add_lightning_class_args(EarlyStopping, "early_stopping")
        parser.set_defaults({"early_stopping.monitor": "dev_loss", "early_stopping.patience": 3})
        parser.set_defaults({"early_stopping.check_on_train_epoch_end": False})
        parser.add_argument("--save_every", type=int, default=200, help="Steps between checkpoints to resume from.")
        parser.link_arguments("data.lm", "model.init_args.lm")
        parser.link_arguments("data.labels", "model.init_args.labels", compute_fn=_classes)
        parser.link_arguments("data.only", "model.init_args.label")
        parser.link_arguments("seed_everything", "data.seed", compute_fn=int)
        parser.link_arguments("seed_everything", "model.init_args.seed", compute_fn=int)

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """What can be done; prediction is decoding's business."""
        known = LightningCLI.subcommands()
        return {name: known[name] for name in ("fit", "validate", "test")}

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        self.config = parser.parse_args(args)  # type: ignore[arg-type]

    def instantiate_trainer(self, **options: Any) -> Trainer:
        """Give the trainer its loggers, checkpoints and progress bar, all in the run's folder."""
        settings = self._get(self.config_init, "trainer")
        root = Path(settings["default_root_dir"] or "runs/train")
        if settings["logger"] in (None, True):
            logs = CSVLogger(root, name="logs")
            options["logger"] = [logs, TensorBoardLogger(root, name="logs", version=logs.version)]
        for show in ("enable_progress_bar", "enable_model_summary"):
            if settings[show] is None:
                options[show] = sys.stdout.isatty()
        best = self._get(self.config_init, "best")
        best.dirpath = best.dirpath or str(root / "checkpoints")
        last = ModelCheckpoint(
            dirpath=str(root / "checkpoints"),
            filename="last",
            every_n_train_steps=self._get(self.config_init, "save_every"),
            save_top_k=1,
            enable_version_counter=False,
        )
        settings["callbacks"] = [*(settings["callbacks"] or []), last]
        return super().instantiate_trainer(default_root_dir=str(root), **options)

    def after_fit(self) -> None:
        """Measure the best checkpoint and write it as a folder that ``mucola`` loads."""
        if self.trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        best = self._get(self.config_init, "best").best_model_path or None
        chosen: dict[str, Any] = {"datamodule": self.datamodule, "ckpt_path": best, "verbose": False}
        measured = dict(self.trainer.validate(self.model, **chosen)[0])
        if "test" in self.datamodule.texts:
            measured |= self.trainer.test(self.model, **chosen)[0]
        if self.trainer.is_global_zero:
            self._dump_config()
            folder = Path(self.trainer.default_root_dir) / "export"
            export(folder, self.model, self.datamodule, measured, self.config_dump)


def _classes(labels: dict[str, str] | None) -> list[str]:
    """Names of the classes; without labels the parser itself says that they are missing."""
    return class_names(labels or {})


def _quiet() -> None:
    """Leave out notices of libraries that a user can do nothing about."""
    for text in (
        "does not have many workers",
        "is smaller than the logging interval",
        "sync_dist=True",  # torchmetrics gathers over the devices by itself
        "in eval mode at the start of training",  # the frozen language model is meant to be
        "exists and is not empty",
        "treespec, LeafSpec",
    ):
        warnings.filterwarnings("ignore", message=f".*{text}.*")
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.WARNING)
