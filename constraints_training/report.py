"""``mucola train report CKPT``: how good is my classifier, on whole, cut and generated text?"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import torch
from torch import Tensor

from constraints_training.data import TextData, encode
from constraints_training.export import RECORD_FILE
from constraints_training.metrics import classification
from constraints_training.predictor import Predictor, cut, predictor
from constraints_training.sources import Source
from constraints_training.texts import Texts, read, shuffled
from mucola.attribute_models import find_attribute_model
from mucola.cli import parser
from mucola.errors import MucolaError

SHARES = (0.25, 0.5, 0.75, 1.0)
LENGTHS = (8, 16, 32, 64)


def command(arguments: Sequence[str]) -> None:
    """Entry point of ``mucola train report``."""
    made = parser("train report", "Tell how good an attribute model is.")
    made.add_argument("checkpoint", type=str, help="shipped name, folder, or Hugging Face id")
    made.add_argument("--against", type=str | None, default=None, help="for a class LM: one of the other class")
    made.add_argument(
        "--data", type=Source | None, default=None, help="labelled texts; by default those it was tested on"
    )
    made.add_argument("--limit", type=int, default=1000, help="use no more than this many texts")
    made.add_argument(
        "--generated", type=int, default=64, help="texts that the language model is to continue; 0 for none"
    )
    made.add_argument("--seed", type=int, default=0, help="what the draw of texts and the continuations depend on")
    made.add_argument("--out", type=Path | None, default=None, help="folder for report.json and report.png")
    chosen = made.instantiate_classes(made.parse_args(list(arguments)))
    model = predictor(chosen.checkpoint, chosen.against)
    texts = load_texts(find_attribute_model(chosen.checkpoint), model, chosen.data, chosen.limit, chosen.seed)
    found = measure(model, texts, chosen.generated, chosen.seed)
    sys.stdout.write(as_text(found))
    if chosen.out is not None:
        chosen.out.mkdir(parents=True, exist_ok=True)
        (chosen.out / "report.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        plot(found, chosen.out / "report.png")


def load_texts(folder: Path, model: Predictor, source: Source | None, limit: int, seed: int) -> list[dict[str, Any]]:
    """Rows with ``tokens`` and ``label`` from a source, or from the test (else development) data of the training."""
    try:
        settings = json.loads((folder / RECORD_FILE).read_text(encoding="utf-8"))["config"]["data"]
    except FileNotFoundError as error:
        raise MucolaError(f"{folder} has no {RECORD_FILE}, so nothing says how to read labelled texts.") from error
    labels = {value: name for value, name in settings["labels"].items() if name in model.labels}
    labels = dict(sorted(labels.items(), key=lambda pair: model.labels.index(pair[1])))
    if source is not None:
        texts = read(source, labels, settings["natural"])
    else:
        texts = _held_out({**settings, "labels": labels, "only": None})
    if limit < len(texts):
        texts = texts.pick(shuffled(len(texts), seed)[:limit])
    return encode(texts, settings["lm"], settings["max_length"]).to_list()


def _held_out(settings: dict[str, Any]) -> Texts:
    sources = {name: Source(**settings[name]) for name in ("train", "dev", "test") if settings[name]}
    name = "test" if "test" in sources or settings["test_share"] > 0 else "dev"
    if name in sources:
        return read(sources[name], settings["labels"], settings["natural"])
    data = TextData(**{**settings, **sources})
    data.setup()
    return data.texts[name]


def measure(model: Predictor, rows: list[dict[str, Any]], generated: int, seed: int) -> dict[str, Any]:
    """All figures of the report."""
    texts = [row["tokens"] for row in rows]
    labels = torch.tensor([row["label"] for row in rows])
    by_share = model.beginnings(texts, SHARES)
    probabilities = by_share[-1]
    metrics = classification(model.labels, prefix="")
    metrics.update(probabilities, labels)
    lengths = torch.tensor([len(text) for text in texts])
    found: dict[str, Any] = {
        "texts": len(texts),
        "majority": torch.bincount(labels).max().item() / len(labels),
        **{name: value.item() for name, value in metrics.compute().items()},
        "by_length": _by_length(probabilities, labels, lengths),
        "by_share_read": {str(share): _accuracy(part, labels) for share, part in zip(SHARES, by_share, strict=True)},
        "reliability": _reliability(probabilities, labels),
    }
    if generated:
        picked = [number for number in range(len(texts)) if len(texts[number]) >= 4][:generated]
        begun = [cut(texts[number], 0.5) for number in picked]
        continued = continue_texts(model, begun, [len(texts[number]) for number in picked], seed)
        found["generated"] = {
            "texts": len(picked),
            "first_half_alone": _accuracy(model(begun), labels[picked]),
            "continued_by_the_lm": _accuracy(model(continued), labels[picked]),
            "original": _accuracy(probabilities[picked], labels[picked]),
        }
    return found


@torch.inference_mode()
def continue_texts(model: Predictor, begun: list[list[int]], lengths: list[int], seed: int) -> list[list[int]]:
    """Let the language model write each text on to its length, by nucleus sampling (p = 0.96)."""
    torch.manual_seed(seed)
    padding = model.tokenizer.pad_token_id or model.tokenizer.eos_token_id or 0
    written = []
    for start in range(0, len(begun), 32):
        part = begun[start : start + 32]
        width = max(map(len, part))
        tokens = torch.tensor([[padding] * (width - len(text)) + text for text in part])
        mask = torch.tensor([[0] * (width - len(text)) + [1] * len(text) for text in part])
        new = max(length - len(text) for text, length in zip(part, lengths[start:], strict=False))
        out = model.lm.generate(
            input_ids=tokens,
            attention_mask=mask,
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=True,
            top_p=0.96,
            top_k=0,
            pad_token_id=padding,
        )
        for text, row, length in zip(part, out.tolist(), lengths[start:], strict=False):
            written.append(text + row[width : width + length - len(text)])
    return written


def _accuracy(probabilities: Tensor, labels: Tensor) -> float:
    return (probabilities.argmax(dim=1) == labels).float().mean().item()


def _by_length(probabilities: Tensor, labels: Tensor, lengths: Tensor) -> dict[str, dict[str, float]]:
    found = {}
    low = 0
    for high in (*LENGTHS, int(lengths.max())):
        chosen = (lengths > low) & (lengths <= high)
        if chosen.any():
            accuracy = _accuracy(probabilities[chosen], labels[chosen])
            found[f"{low + 1}-{high}"] = {"texts": int(chosen.sum()), "accuracy": accuracy}
        low = max(low, high)
    return found


def _reliability(probabilities: Tensor, labels: Tensor, bins: int = 10) -> list[dict[str, float]]:
    """Mean confidence and accuracy of the texts in each tenth of confidence."""
    confidence, predicted = probabilities.max(dim=1)
    number = (confidence * bins).long().clamp(max=bins - 1)
    found = []
    for which in range(bins):
        chosen = number == which
        if chosen.any():
            right = (predicted[chosen] == labels[chosen]).float().mean().item()
            found.append(
                {"confidence": confidence[chosen].mean().item(), "accuracy": right, "texts": int(chosen.sum())}
            )
    return found


def as_text(found: dict[str, Any]) -> str:
    """The report for a terminal."""
    lines = [
        f"{found['texts']} texts; always naming the most frequent class would be right for {found['majority']:.3f}"
    ]
    plain = [(name, value) for name, value in found.items() if isinstance(value, float) and name != "majority"]
    lines += [f"  {name.replace('_', ' '):<24} {value:.3f}" for name, value in plain]
    lines.append("accuracy by length in tokens")
    lines += [
        f"  {name:<24} {part['accuracy']:.3f}  ({part['texts']} texts)" for name, part in found["by_length"].items()
    ]
    lines.append("accuracy when only the beginning is read")
    lines += [f"  {float(share):<24.0%} {value:.3f}" for share, value in found["by_share_read"].items()]
    if "generated" in found:
        part = found["generated"]
        lines.append(f"accuracy when the language model writes the second half ({part['texts']} texts)")
        for name in ("first_half_alone", "continued_by_the_lm", "original"):
            lines.append(f"  {name.replace('_', ' '):<24} {part[name]:.3f}")
    return "\n".join(lines) + "\n"


def plot(found: dict[str, Any], file: Path) -> None:
    """Accuracy by length, by share read (and continued), and a reliability diagram."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    left.bar(list(found["by_length"]), [part["accuracy"] for part in found["by_length"].values()])
    left.set(xlabel="length in tokens", ylabel="accuracy", ylim=(0, 1))
    middle.plot(
        *zip(*[(float(share), value) for share, value in found["by_share_read"].items()], strict=True), marker="o"
    )
    if "generated" in found:
        middle.plot(
            [0.5], [found["generated"]["continued_by_the_lm"]], marker="x", linestyle="", label="continued by the LM"
        )
        middle.legend(frameon=False)
    middle.set(xlabel="share of the text read", ylim=(0, 1))
    right.plot([0, 1], [0, 1], color="grey", linewidth=0.8)
    right.plot(
        [p["confidence"] for p in found["reliability"]], [p["accuracy"] for p in found["reliability"]], marker="o"
    )
    right.set(xlabel="confidence", ylabel="accuracy", xlim=(0.4, 1), ylim=(0, 1))
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
