"""The pages of docs/results, made of the reports that experiments left behind.

    python -m benchmarks results FOLDER

FOLDER is that of ``mucola experiment``. Each table whose report is there becomes a page: its figures beside the
paper's, a plot, samples drawn at random, signatures, the command and CPU time. Nothing on it is written by hand. What
``mucola experiment NAME --judge MODEL`` left there is one more column of perplexity.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import auto_cli

from mucola.commands.experiment import CONFIGS, Experiment
from mucola.generations import Run

PAGES = Path("docs/results")
SHORT = {"ancestral": "anc.", "langevin": "chain", "fallback": "fallback", "draft": "draft"}
"""Where samples come from, in few letters."""

Row = dict[str, Any]
"""Of metrics.json."""


@dataclass(frozen=True)
class Column:
    """A column of a table and how a row fills it."""

    title: str
    cell: Callable[[Row], str]


def interval(title: str, key: str, unit: float = 1, digits: int = 1) -> Column:
    """A number with its interval."""

    def cell(row: Row) -> str:
        if (found := row["metrics"].get(key)) is None or found["value"] is None:
            return ""
        value, low, high = (f"{unit * found[name]:.{digits}f}" for name in ("value", "low", "high"))
        return f"{value} [{low}-{high}]"

    return Column(title, cell)


def plain(title: str, keys: Sequence[str], unit: float = 1, digits: int = 1) -> Column:
    """One or several numbers without intervals."""

    def cell(row: Row) -> str:
        found = [row["metrics"][key]["value"] for key in keys if key in row["metrics"]]
        return "/".join("" if value is None else f"{unit * value:.{digits}f}" for value in found)

    return Column(title, cell)


CONTROL = {
    "toxicity": [
        interval("avg. max. toxicity", "max_toxicity", digits=3),
        interval("toxicity prob.", "toxicity_probability", digits=2),
    ],
    "sentiment": [
        interval("% by SST-2", "accuracy:ngrams-sst2", 100, 0),
        interval("% by Yelp", "accuracy:ngrams-yelp", 100, 0),
        interval("% by IMDB", "accuracy:ngrams-imdb", 100, 0),
    ],
    "keywords": [interval("words found", "keyword_count", digits=2), plain("% with all", ["keyword_coverage"], 100, 0)],
}
"""What each suite is about."""
AXIS = {
    "toxicity": ("max_toxicity", "average maximum toxicity", 1),
    "sentiment": ("accuracy:ngrams-sst2", "% of the wanted sentiment (n-grams of SST-2)", 100),
    "keywords": ("keyword_coverage", "% with all words", 100),
}


def columns(suite: str, judges: Sequence[str]) -> list[Column]:
    """All columns of a table but the row's name, CPU time and the paper's figures."""
    return [
        *CONTROL[suite],
        interval("perplexity, SmolLM2", "perplexity"),
        *(interval(f"perplexity, {judge}", f"perplexity:{judge}") for judge in judges),
        plain("grammatical %", ["grammar"], 100, 0),
        plain("dist-1/2/3", ["dist_1", "dist_2", "dist_3"], digits=2),
        plain("repetition %", ["repetition"], 100, 1),
        plain("verified %", ["verified"], 100, 1),
        Column("from", sources),
    ]


def sources(row: Row) -> str:
    """Where a run's samples come from, unless they all come from a baseline."""
    known = {name: count for name, count in row["sources"].items() if name in SHORT}
    return ", ".join(f"{count} {SHORT[name]}" for name, count in known.items())


def main(folder: Path, pages: Path = PAGES, samples: int = 2) -> None:
    """Write a page for each table in ``folder`` that has a report."""
    paper = yaml.safe_load((PAGES / "paper.yaml").read_text(encoding="utf-8"))
    for file in sorted(CONFIGS.glob("*.yaml")):
        experiment, name = Experiment.load(file.stem), file.stem
        for key in experiment.fillings():
            if (metrics := _metrics(folder, name, key)) is None:
                continue
            page = "-".join(filter(None, (name, key)))
            drawn = plot(metrics, pages / f"{page}.svg")
            parts = [
                f"# {experiment.title}{f': {key}' if key else ''}\n",
                _command(folder, name, key, experiment),
                table(folder, name, key, metrics, paper.get(name, {}).get(key, {})),
                f"![Control against perplexity]({page}.svg)\n" if drawn else "",
                quoted(folder, name, key, metrics, samples),
                signatures(metrics),
            ]
            (pages / f"{page}.md").write_text("\n".join(filter(None, parts)), encoding="utf-8")
            print(pages / f"{page}.md")


def _metrics(folder: Path, name: str, key: str) -> dict[str, Any] | None:
    """Of the table's report, with the perplexities of other judges: under ``judges`` their names."""
    if (metrics := _report(folder / "out", name, key)) is None:
        return None
    metrics["judges"] = []
    for other in sorted(folder.glob("out-*")):
        if (again := _report(other, name, key)) is None:
            continue
        judge = other.name.removeprefix("out-")
        metrics["judges"].append(judge)
        judged = {row["name"]: row["metrics"]["perplexity"] for row in again["runs"]}
        for row in metrics["runs"]:
            if row["name"] in judged:
                row["metrics"][f"perplexity:{judge}"] = judged[row["name"]]
    return metrics


def _report(reports: Path, name: str, key: str) -> dict[str, Any] | None:
    path = reports / name / key / "metrics.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _seconds(folder: Path, name: str, key: str, row: str) -> float:
    record = folder / "runs/experiments" / name / key / f"{row}.json"
    return json.loads(record.read_text(encoding="utf-8"))["cpu_seconds"] if record.is_file() else 0.0


def _command(folder: Path, name: str, key: str, experiment: Experiment) -> str:
    """How to run it, what the experiment's models took, what the rows took."""
    rows = (folder / "runs/experiments" / name / key).glob("*.json")
    models = ((folder / run).with_suffix(".json") for run in experiment.models)
    facts = [json.loads(path.read_text(encoding="utf-8")) for path in (*models, *rows) if path.is_file()]
    seconds = {"train": 0.0, "decode": 0.0}
    for fact in facts:
        seconds[fact["arguments"][0]] += fact["cpu_seconds"]
    took = ", ".join(f"{value / 60:.0f} minutes to {kind}" for kind, value in seconds.items() if value)
    table = f" --table {key}" if key else ""
    return f"```\nmucola experiment {name}{table}\n```\n\nCPU time: {took}. Intervals are 95 %, over prompts.\n"


def table(folder: Path, name: str, key: str, metrics: dict[str, Any], paper: dict[str, str]) -> str:
    """The table in Markdown; columns that no row fills are left out."""
    runs = metrics["runs"]
    filled = [
        ("", [run["name"] for run in runs]),
        *(
            (column.title, [column.cell(run) for run in runs])
            for column in columns(metrics["suite"], metrics["judges"])
        ),
        ("CPU s per sample", [f"{_seconds(folder, name, key, run['name']) / run['samples']:.1f}" for run in runs]),
        ("paper", [paper.get(run["name"], "") for run in runs]),
    ]
    shown = [(title, cells) for title, cells in filled if any(cells)]
    lines = [[title for title, _ in shown], ["---"] * len(shown), *zip(*(cells for _, cells in shown), strict=True)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def plot(metrics: dict[str, Any], path: Path) -> bool:
    """Control against perplexity, a dot a row; whether there was anything to draw."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    key, title, unit = AXIS[metrics["suite"]]
    runs = [run for run in metrics["runs"] if {key, "perplexity"} <= set(run["metrics"])]
    if len(runs) < 2:
        return False
    rcParams["svg.fonttype"], rcParams["svg.hashsalt"] = "none", path.stem
    figure = Figure(figsize=(8.5, 4.2), layout="constrained")
    axes = figure.subplots()
    for number, run in enumerate(runs, start=1):
        across, up = run["metrics"]["perplexity"], run["metrics"][key]
        x, y = across["value"], unit * up["value"]
        spread = [[x - across["low"]], [across["high"] - x]], [[y - unit * up["low"]], [unit * up["high"] - y]]
        ours = run["name"].startswith("mucola")
        colour = "tab:red" if ours else "black" if run["name"] == metrics["unconstrained"] else "tab:blue"
        dot = {"fmt": "o", "color": colour, "elinewidth": 0.4, "markersize": 10, "zorder": 2 + number}
        axes.errorbar(x, y, *reversed(spread), label=f"{number}  {run['name']}", **dot)
        centre = {"ha": "center", "va": "center_baseline", "fontsize": 7, "color": "white", "zorder": 2.5 + number}
        axes.text(x, y, str(number), **centre)
    figure.legend(loc="outside right center", frameon=False, fontsize=8)
    values = [run["metrics"]["perplexity"]["value"] for run in runs]
    if max(values) > 8 * min(values):
        axes.set_xscale("log")
    axes.set_xlabel("perplexity (SmolLM2)")
    axes.set_ylabel(title)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
    return True


def quoted(folder: Path, name: str, key: str, metrics: dict[str, Any], samples: int) -> str:
    """A few samples of every row, drawn at random: the same prompts for all."""
    lines = ["| | drawn at random |", "|---|---|"]
    for row in metrics["runs"]:
        groups = sorted(Run(folder / row["path"]), key=lambda group: group[0].prompt_id)
        for group in random.Random(f"{name} {key}").sample(groups, min(samples, len(groups))):
            sample = min(group, key=lambda item: item.sample)
            prompt = sample.prompt[-60:] if len(sample.prompt) > 60 else sample.prompt
            space = " " if sample.text[:1].isspace() else ""
            quote = f"{_cell(prompt.strip())}{space}**{_cell(sample.text.strip())}**"
            lines.append(f"| {row['name']} | {'...' if prompt != sample.prompt else ''}{quote} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Text inside a cell of a table."""
    for mark in ("\\", "|", "*", "_", "<", "`", "#"):
        text = text.replace(mark, f"\\{mark}")
    return text.replace("\n", " ⏎ ").replace("\r", " ")


def signatures(metrics: dict[str, Any]) -> str:
    """Those of the first row's numbers."""
    return "Signatures:\n\n```\n" + "\n".join(_signatures(metrics)) + "\n```\n"


def _signatures(metrics: dict[str, Any]) -> Iterator[str]:
    judged = [f"perplexity:{judge}" for judge in metrics["judges"]]
    wanted = [AXIS[metrics["suite"]][0], "perplexity", *judged, "grammar", "dist_1", "repetition", "verified"]
    for key in wanted:
        if key in metrics["runs"][0]["metrics"]:
            yield metrics["runs"][0]["metrics"][key]["signature"]


if __name__ == "__main__":
    auto_cli(main)
