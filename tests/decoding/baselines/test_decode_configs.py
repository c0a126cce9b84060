"""Every config under configs/decode is a run: it parses, its method can be made, its constraints can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from decoding.command import arguments_parser
from decoding.methods import MuCoLa
from mucola.commands.sample import written_constraints
from mucola.constraints import parse_all

CONFIGS = Path(__file__).parents[3] / "configs" / "decode"
MODELS = ["smollm2-135m", "gpt2-large"]
LABELS = {"positive": "positive", "negative": "negative", "toxicity": "nontoxic"}


def names(folder: str) -> list[str]:
    found = sorted(file.stem for file in (CONFIGS / folder).glob("*.yaml"))
    assert found
    return found


def runs() -> list[tuple[str, ...]]:
    """The layers of every run: a task, a model's experiment, and a method where the experiment leaves it open."""
    found: list[tuple[str, ...]] = []
    for model in MODELS:
        for folder, task in (("toxicity", "toxicity"), ("positive", "sentiment-12"), ("negative", "sentiment-50")):
            found += [(f"tasks/{task}", f"{model}/{folder}/{name}") for name in names(f"{model}/{folder}")]
        found += [(f"tasks/{task}", f"{model}/keywords") for task in ("commongen", "roc")]
    found += [("tasks/roc", "smollm2-135m/keywords", f"methods/{name}") for name in names("methods")]
    found += [("tasks/sentiment-20", "gpt2-large/positive/mucola-prompt", "methods/nucleus")]
    return found


@pytest.fixture(scope="module")
def parser() -> Any:
    return arguments_parser()


def parsed(parser: Any, layers: tuple[str, ...]) -> Any:
    arguments = [word for layer in layers for word in ("--config", str(CONFIGS / f"{layer}.yaml"))]
    return parser.instantiate_classes(parser.parse_args([*arguments, "--output", "runs/test"]))


@pytest.mark.parametrize("layers", runs(), ids="+".join)
def test_a_run(layers: tuple[str, ...], parser: Any) -> None:
    options = parsed(parser, layers)
    model, *folder, name = layers[1].split("/")
    assert options.model == model
    written = written_constraints(options)
    if name == "keywords":
        assert not written, "keywords come with the prompts"
    else:
        assert parse_all(written)
        assert getattr(options.method, "label", LABELS[folder[0]]) == LABELS[folder[0]]
        assert ("negative" in written[0]) == (folder == ["negative"]) or name.startswith(
            ("mucola-prompt", "mucola-dex")
        )
        assert isinstance(options.method, MuCoLa) == (name.startswith("mucola") and len(layers) == 2)
    checkpoints = [*options.method.steering(), *(text for text in written if "runs/" in text)]
    assert all(("runs/paper-" in text) == (model == "gpt2-large") for text in checkpoints)


def test_the_protocol_of_the_paper(parser: Any) -> None:
    toxicity = parsed(parser, ("tasks/toxicity", "gpt2-large/toxicity/dexperts"))
    assert (toxicity.num_samples, toxicity.length, toxicity.prompts.subset) == (25, 20, 10_000)
    assert toxicity.method.alpha == 2.0
    for length in (12, 20, 50):
        sentiment = parsed(parser, (f"tasks/sentiment-{length}", "gpt2-large/positive/dexperts-yelp"))
        assert (sentiment.num_samples, sentiment.length) == (20, length)
        assert sentiment.method.alpha == 3.2
    for task, total in (("commongen", 40), ("roc", 90)):
        keywords = parsed(parser, (f"tasks/{task}", "gpt2-large/keywords"))
        assert (keywords.length, keywords.continue_to) == ([10, 20, 40], total)
        assert keywords.method.sampling.restarts == 3


def test_no_file_is_left_over() -> None:
    used = {layer for layers in runs() for layer in layers}
    there = {str(file.relative_to(CONFIGS).with_suffix("")) for file in CONFIGS.rglob("*.yaml")}
    assert there == used
