"""A page on which one watches a chain: its text at each step, and the curves that drove it."""

from __future__ import annotations

from pathlib import Path

from evaluation import plots
from evaluation.pages import render
from evaluation.traces import numbers, read_trace
from mucola.errors import MucolaError
from mucola.trace import Trace


def write_viewer(trace: str | Path, output: str | Path | None = None) -> Path:
    """Write the page for a trace file, beside it unless ``output`` says where."""
    source = Path(trace)
    page = Path(output) if output else source.with_name(source.name.split(".")[0] + ".html")
    content = viewer_page(read_trace(source))
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(content, encoding="utf-8")
    except OSError as error:
        raise MucolaError(f"The page {page} cannot be written: {error.strerror or error}.") from error
    return page


def viewer_page(trace: Trace) -> str:
    """The page as text."""
    steps = trace.steps
    figures = [("Energy", plots.lines({"NLL": numbers([step.nll for step in steps])}, "step", "nats"))]
    for index, (name, threshold) in enumerate(zip(trace.constraints, trace.thresholds, strict=True)):
        rows = {
            name: numbers([step.values[index] for step in steps]),
            "threshold": numbers([threshold] * len(steps)),
        }
        figures.append((f"Constraint: {name}", plots.lines(rows, "step", "value")))
    if trace.constraints:
        multipliers = {
            f"{index + 1}. {name}": numbers([step.multipliers[index] for step in steps])
            for index, name in enumerate(trace.constraints)
        }
        figures.append(("Multipliers", plots.lines(multipliers, "step", "multiplier", zero=True)))
    schedule = {  # a chain is recorded once before its first step, which has neither noise nor size
        "noise": numbers([step.noise if step.step_size else None for step in steps]),
        "step size": numbers([step.step_size or None for step in steps]),
    }
    figures.append(("Schedule", plots.lines(schedule, "step", "value", zero=True)))
    data = {
        "prompt": trace.prompt,
        "texts": {str(token): text for token, text in trace.token_texts.items()},
        "constraints": [
            {"name": name, "threshold": threshold}
            for name, threshold in zip(trace.constraints, trace.thresholds, strict=True)
        ],
        "steps": [vars(step) for step in steps],
        "across": plots.ACROSS,
    }
    satisfied = sum(step.satisfied for step in steps)
    return render("trace", data=data, figures=figures, prompt=trace.prompt, count=len(steps), satisfied=satisfied)
