"""Writing results: ``metrics.json``, ``table.md``, ``table.tex`` and the page ``report.html``."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from markupsafe import Markup

from evaluation import plots
from evaluation.lengths import differing_lengths, mixed_lengths
from evaluation.measure import Judges, Measured, Sample
from evaluation.pages import render
from evaluation.suites import SAMPLER, Options, Suite
from evaluation.table import Table, distance_text, heading, make_table, to_latex, to_markdown
from evaluation.traces import average, numbers, read_trace
from mucola.errors import MucolaError

TRACES = 50
"""Chains of a run that its convergence plot averages."""
_HIDE_ABOVE = 0.5


@dataclass(frozen=True)
class Figure:
    """A picture of the report."""

    title: str
    svg: Markup
    caption: str


@dataclass(frozen=True)
class Results:
    """All that a report is made of."""

    options: Options
    suite: Suite
    runs: Sequence[Measured]
    judges: Judges
    unconstrained: str | None

    def table(self) -> Table:
        return make_table(self.runs, self.suite.measures, self.unconstrained)


def write_report(results: Results, folder: Path) -> Path:
    """Write all files of a report into ``folder`` and return the page."""
    table = results.table()
    written = {
        "metrics.json": json.dumps(_metrics(results), indent=2, ensure_ascii=False, allow_nan=False) + "\n",
        "table.md": to_markdown(table),
        "table.tex": to_latex(table),
        "report.html": _page(results, table),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in written.items():
            (folder / name).write_text(content, encoding="utf-8")
    except OSError as error:
        raise MucolaError(f"The report cannot be written to {folder}: {error.strerror or error}.") from error
    return folder / "report.html"


def notes(results: Results) -> list[str]:
    """What a reader must know before believing a number."""
    found = []
    judge, written = results.judges.judge, [run.name for run in results.runs if run.self_judged]
    if judge and written:
        found.append(
            f"The judge of perplexity, {judge.name}, wrote {', '.join(written)}: a model finds its own samples likely. "
            "For an independent view name another with --judge."
        )
    for run in results.runs:
        for scorer in run.steered_by:
            found.append(
                f"{run.name} was steered by the model that scores it here ({scorer}): its control numbers are "
                "what it was optimised for, not evidence. Score it with another."
            )
        if len(run.lengths) > 1:
            found.append(mixed_lengths(run))
        for measure in results.suite.measures:
            gaps, known = run.gaps[measure.key], run.estimates.get(measure.key)
            if gaps and known:
                found.append(f"{measure.title} of {run.name}: {gaps} of {len_samples(run)} samples have no score.")
    return found + differing_lengths(results.runs)


def len_samples(run: Measured) -> int:
    return run.sources.total()


def _metrics(results: Results) -> dict[str, Any]:
    return {
        "suite": results.options.suite,
        "version": version("mucola"),
        "unconstrained": results.unconstrained,
        "notes": notes(results),
        "scorers": {
            column: {"name": scorer.name, "revision": scorer.revision, "held_out": scorer.quality}
            for column, scorer in results.judges.scorers.items()
        },
        "judge": results.judges.judge and results.judges.judge.revision,
        "runs": [_run_metrics(run, distance) for run, distance in _with_distance(results)],
    }


def _with_distance(results: Results) -> list[tuple[Measured, float | None]]:
    return list(zip(results.runs, results.table().distances, strict=True))


def _run_metrics(run: Measured, distance: float | None) -> dict[str, Any]:
    return {
        "name": run.name,
        "path": str(run.run.path),
        "prompts": len(run.run.prompts),
        "samples": len_samples(run),
        "steered_by_scorer": run.steered_by,
        "metrics": {
            key: {**{k: _finite(v) for k, v in asdict(estimate).items()}, "gaps": run.gaps[key]}
            for key, estimate in run.estimates.items()
        },
        "perplexity_distance": distance,
        "not_recorded": sorted(key for key in run.gaps if key not in run.estimates),
        "sources": dict(run.sources),
        "by_source": {
            source: {name: _finite(estimate.value) for name, estimate in pair.items()}
            for source, pair in run.by_source.items()
        },
    }


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN: a number that does not exist is null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _page(results: Results, table: Table) -> str:
    first = results.runs[0]
    samples = [_shown(sample, run, results.suite) for run in results.runs for sample in run.samples]
    total = sum(len_samples(run) for run in results.runs)
    return render(
        "report",
        data={"samples": samples},
        title=f"Evaluation: {results.options.suite}",
        version=version("mucola"),
        prompts=len(first.run.prompts),
        samples=len_samples(first) // len(first.run.prompts),
        notes=notes(results),
        table=table,
        sections=_sections(table),
        rows=list(zip(table.names, table.rows, table.distances, strict=True)),
        heading=heading,
        distance_text=distance_text,
        figures=_figures(results),
        by_source=_by_source(results.runs),
        browser_note=(
            f"All {total} samples."
            if len(samples) == total
            else f"{len(samples)} of {total} samples: of each run the worst, and others drawn at random."
        ),
        scorers=_scorers(results.judges),
    )


def _sections(table: Table) -> list[dict[str, Any]]:
    """What was reached and what it took, as two tables: one would be too wide to read."""
    sections = []
    for title, wanted in (("What was reached", False), ("What it took", True)):
        places = [place for place, measure in enumerate(table.measures) if (measure.group == SAMPLER) == wanted]
        groups = Counter(table.measures[place].group for place in places)
        if places:
            sections.append({"title": title, "places": places, "groups": list(groups.items())})
    return sections


def _shown(sample: Sample, run: Measured, suite: Suite) -> dict[str, Any]:
    generation = sample.generation
    return {
        "run": run.name,
        "prompt": generation.prompt,
        "text": generation.text,
        "source": generation.source,
        "badness": sample.badness if math.isfinite(sample.badness) else -1.0,
        "scores": {column.removeprefix("sentiment:"): score for column, score in sample.scores.items()},
        "values": generation.values,
        "verified": generation.verified,
        "hidden": suite.hides and sample.badness > _HIDE_ABOVE,
        "prompt_hidden": suite.hides and (sample.prompt_score or 0) > _HIDE_ABOVE,
    }


def _figures(results: Results) -> list[Figure]:
    runs, suite = results.runs, results.suite
    control = next(measure for measure in suite.measures if measure.key == suite.control)
    colours = {run.name: place for place, run in enumerate(runs)}  # a run has one in all pictures
    figures = []
    points = [
        (run.name, _triple(run, "perplexity"), _triple(run, control.key, 100 if control.percent else 1))
        for run in runs
        if "perplexity" in run.estimates and control.key in run.estimates
    ]
    if points:
        figures.append(
            Figure(
                "Control against fluency",
                plots.scatter(points, "Perplexity", control.title, colours),
                "Dots are runs, whiskers 95 % intervals.",
            )
        )
    controls = {run.name: run.control for run in runs if len(run.control)}
    if controls:
        figures.append(
            Figure(
                "Control, sample by sample",
                plots.histograms(controls, suite.control_axis, colours=colours),
                "Each run scaled to its peak; the line is the median.",
            )
        )
    fluency = {run.name: run.perplexities for run in runs if len(run.perplexities)}
    if fluency:
        figures.append(
            Figure(
                "Fluency, sample by sample",
                plots.histograms(fluency, "perplexity of a sample", log=True, colours=colours),
                "Each run scaled to its peak; the line is the median.",
            )
        )
    order = list(dict.fromkeys(source for run in runs for source in run.sources))
    figures.append(
        Figure(
            "Where the samples come from",
            plots.shares({run.name: run.sources for run in runs}, order),
            "Shares of the samples of each run.",
        )
    )
    return figures + _convergence(runs, colours)


def _triple(run: Measured, key: str, unit: int = 1) -> tuple[float, float, float]:
    estimate = run.estimates[key]
    return unit * estimate.value, unit * estimate.low, unit * estimate.high


def _convergence(runs: Sequence[Measured], colours: plots.Colours) -> list[Figure]:
    energy: dict[str, list[float]] = {}
    satisfied: dict[str, list[float]] = {}
    for run in runs:
        paths = [path for generation in run.traces[:TRACES] if (path := run.run.trace_path(generation))]
        traces = [read_trace(path) for path in paths]
        if traces:
            energy[run.name] = average([numbers([step.nll for step in trace.steps]) for trace in traces])
            satisfied[run.name] = average([[float(step.satisfied) for step in trace.steps] for trace in traces])
    if not energy:
        return []
    caption = f"Mean over the traced chains of a run (at most {TRACES}); a chain that stopped stays where it stopped."
    return [
        Figure("Convergence: energy", plots.lines(energy, "step", "NLL (nats)", colours=colours), caption),
        Figure(
            "Convergence: constraints",
            plots.lines(satisfied, "step", "share satisfied", zero=True, colours=colours),
            caption,
        ),
    ]


def _by_source(runs: Sequence[Measured]) -> list[dict[str, Any]]:
    rows = []
    for run in runs:
        for source, pair in run.by_source.items():
            if pair:
                cells = {name: f"{100 * pair[name].value:.1f}" if name in pair else "-" for name in _FLAGS}
                rows.append({"run": run.name, "source": source, "count": run.sources[source], **cells})
    return rows


_FLAGS = ("satisfied", "verified")


def _scorers(judges: Judges) -> list[dict[str, str]]:
    rows = [
        {"name": scorer.name, "revision": scorer.revision, "quality": quality_text(scorer.quality)}
        for scorer in judges.scorers.values()
    ]
    if judges.judge:
        rows.append({"name": "perplexity", "revision": judges.judge.revision, "quality": ""})
    return rows


def quality_text(quality: dict[str, Any]) -> str:
    """One line about a scorer's held-out results.

    >>> quality_text({"sst2 dev": {"examples": 872, "accuracy": 0.8177}})
    'sst2 dev (872): accuracy 0.818'
    """
    lines = []
    for data, results in quality.items():
        rest = [f"{name.replace('_', ' ')} {value:.3f}" for name, value in results.items() if name != "examples"]
        lines.append(f"{data} ({results['examples']}): {', '.join(rest)}")
    return "; ".join(lines)
