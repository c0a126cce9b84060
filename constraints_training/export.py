"""The exported folder: weights, the record of how they were made, a learning curve and a model card."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import matplotlib
import yaml

from constraints_training.base import AttributeTraining
from constraints_training.data import TextData

RECORD_FILE = "training.json"


def export(
    folder: Path, module: AttributeTraining, data: TextData, metrics: Mapping[str, float], config: dict[str, Any]
) -> None:
    """Write ``module`` with its card, record and learning curve; ``push_to_hub`` can send the folder as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    module.export(folder)
    record = {
        "metrics": {name: round(float(value), 4) for name, value in metrics.items()},
        "data": data.description,
        "seed": module.seed,
        "steps": max((int(point["step"]) for point in module.history), default=0),
        "config": {name: config[name] for name in ("seed_everything", "model", "data")} | {"trainer": _plain(config)},
        "versions": {name: version(name) for name in ("mucola", "torch", "transformers", "lightning")},
    }
    (folder / RECORD_FILE).write_text(json.dumps(record, indent=2, default=str) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(_card(module, record), encoding="utf-8")
    plot_history(module.history, folder / "learning_curve.png", module.one_loss)


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """The settings of the trainer that say how long and how precisely was trained."""
    kept = (
        "max_epochs",
        "max_steps",
        "precision",
        "accumulate_grad_batches",
        "gradient_clip_val",
        "val_check_interval",
    )
    return {name: config["trainer"][name] for name in kept}


def plot_history(history: list[dict[str, float]], file: Path, one_loss: bool) -> None:
    """Training loss, and loss and accuracy on the development texts, against steps; ``one_loss``: both are the same."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.2), sharex=True, layout="constrained")
    measured = left if one_loss else right
    for name, axis in (("train_loss", left), ("dev_loss", measured), ("dev_accuracy", right), ("dev_auroc", right)):
        points = [(point["step"], point[name]) for point in history if name in point]
        if points:
            axis.plot(
                *zip(*points, strict=True), label=name.replace("_", " "), marker="." if len(points) < 20 else None
            )
    for axis in (left, right):
        axis.set_xlabel("step")
        if axis.lines:
            axis.legend(frameon=False)
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def _card(module: AttributeTraining, record: dict[str, Any]) -> str:
    head = {"library_name": "mucola", "tags": ["mucola", "constraint"], "base_model": module.lm_name}
    rows = [f"| {name.replace('_', ' ')} | {value:.4f} |" for name, value in record["metrics"].items()]
    data = [
        f"| {split} | {part['source']} | {part['texts']} | {sum(part['skipped_rows'].values())} "
        f"| `{part['fingerprint']}` |"
        for split, part in record["data"].items()
    ]
    return "\n".join(
        [
            f"---\n{yaml.safe_dump(head)}---",
            f"# {' / '.join(module.labels)} for the embedding table of {module.lm_name}",
            "",
            f"An attribute model for the constraints of mucola, trained by `{type(module).__name__}`. It reads the "
            f"embeddings of {module.lm_name}, which are not part of it.",
            "",
            "| metric | value |\n|---|---|",
            *rows,
            "",
            "| split | source | texts | rows skipped | fingerprint |\n|---|---|---|---|---|",
            *data,
            "",
            f"{record['steps']} steps, seed {record['seed']}.",
            "![learning curve](learning_curve.png)",
            "",
            f"```yaml\n{yaml.safe_dump(record['config'], sort_keys=False)}```",
            "",
        ]
    )
