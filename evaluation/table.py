"""The comparison as a table: which cells there are, which are best, and how Markdown and LaTeX write them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from evaluation.measure import Measured
from evaluation.suites import SAMPLER, Measure


@dataclass(frozen=True)
class Cell:
    """A number in the table, ready to be written."""

    value: float
    low: float
    high: float
    text: str
    interval: str
    best: bool
    signature: str
    gaps: int


@dataclass(frozen=True)
class Table:
    """Rows of cells; None where a run has no such number."""

    measures: tuple[Measure, ...]
    names: tuple[str, ...]
    rows: tuple[tuple[Cell | None, ...], ...]
    distances: tuple[float | None, ...]
    """Perplexity of each run minus that of the unconstrained one."""
    unconstrained: str | None


def make_table(runs: Sequence[Measured], measures: Sequence[Measure], unconstrained: str | None) -> Table:
    """Lay the runs out side by side; columns that no run has are left out.

    The unconstrained run is the yardstick, not a competitor: it is never best. Perplexity is best
    where it is closest to the unconstrained one, for lower only means more repetitive.
    """
    shown = tuple(measure for measure in measures if any(measure.key in run.estimates for run in runs))
    best = {measure.key: _best(runs, measure, unconstrained) for measure in shown}
    rows = tuple(tuple(_cell(run, measure, run.name in best[measure.key]) for measure in shown) for run in runs)
    yardstick = _yardstick(runs, "perplexity", unconstrained)
    distances = tuple(
        run.estimates["perplexity"].value - yardstick
        if yardstick is not None and "perplexity" in run.estimates
        else None
        for run in runs
    )
    return Table(shown, tuple(run.name for run in runs), rows, distances, unconstrained)


def _yardstick(runs: Sequence[Measured], key: str, unconstrained: str | None) -> float | None:
    for run in runs:
        if run.name == unconstrained and key in run.estimates:
            return run.estimates[key].value
    return None


def _best(runs: Sequence[Measured], measure: Measure, unconstrained: str | None) -> set[str]:
    """Names of the best runs: several when they read the same."""
    values = {
        run.name: run.estimates[measure.key].value
        for run in runs
        if measure.key in run.estimates and run.name != unconstrained
    }
    if len(values) < 2 or not measure.better:
        return set()
    if measure.better == "closest":
        goal = _yardstick(runs, measure.key, unconstrained)
        if goal is None:
            return set()
        values = {name: -abs(value - goal) for name, value in values.items()}
    elif measure.better == "lower":
        values = {name: -value for name, value in values.items()}
    top = max(values.values())
    if _number(top, measure) == _number(min(values.values()), measure):
        return set()  # all read the same: none stands out
    return {name for name, value in values.items() if _number(value, measure) == _number(top, measure)}


def _cell(run: Measured, measure: Measure, best: bool) -> Cell | None:
    estimate = run.estimates.get(measure.key)
    if estimate is None:
        return None
    low, high = _number(estimate.low, measure), _number(estimate.high, measure)
    return Cell(
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        text=_number(estimate.value, measure),
        interval=f"{low}-{high}" if estimate.low >= 0 else f"{low} to {high}",
        best=best,
        signature=estimate.signature,
        gaps=run.gaps[measure.key],
    )


def _number(value: float, measure: Measure) -> str:
    """Three figures that mean something.

    >>> from evaluation.metrics import SelfBLEU
    >>> share = Measure("a", "a", "", SelfBLEU, (), percent=True)
    >>> plain = Measure("b", "b", "", SelfBLEU, ())
    >>> _number(0.12345, share), _number(0.12345, plain), _number(25.449, plain), _number(1234.5, plain)
    ('12.3', '0.123', '25.4', '1,234')
    """
    if measure.percent:
        return f"{100 * value:.1f}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"


def heading(measure: Measure) -> str:
    """Title with the direction that is better: an arrow, or the equality of a yardstick."""
    arrow = {"higher": " ↑", "lower": " ↓", "closest": " ≈", "": ""}[measure.better]
    return f"{measure.title}{' (%)' if measure.percent and '%' not in measure.title else ''}{arrow}"


def distance_text(distance: float | None) -> str:
    return "" if distance is None else f"{distance:+.1f}"


def to_markdown(table: Table) -> str:
    """A Markdown table with intervals; best in bold; signatures below."""
    columns = ["Run", *map(heading, table.measures)]
    if table.unconstrained:
        columns.append("Δ ppl")
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for name, row, distance in zip(table.names, table.rows, table.distances, strict=True):
        cells = [_markdown_escape(name), *map(_markdown_cell, row)]
        if table.unconstrained:
            cells.append(distance_text(distance))
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "Intervals: 95 % bootstrap over prompts."]
    if table.unconstrained:
        lines.append(f"Δ ppl: distance to the perplexity of {_markdown_escape(table.unconstrained)}.")
    lines += ["", "Signatures:", ""]
    lines += [f"- {name}: `{cell.signature}`" for name, cell in _signed(table)]
    return "\n".join(lines) + "\n"


def to_latex(table: Table) -> str:
    """A booktabs table in the layout of the paper: groups of columns above, the unconstrained run apart.

    What the sampler needed is left to the other tables: it is about our runs alone.
    """
    places = [place for place, measure in enumerate(table.measures) if measure.group != SAMPLER]
    groups = list(Counter(table.measures[place].group for place in places).items())
    heads = [rf"\multicolumn{{{span}}}{{c}}{{{_latex_escape(group)}}}" for group, span in groups]
    rules, column = [], 2
    for _, span in groups:
        rules.append(rf"\cmidrule(lr){{{column}-{column + span - 1}}}")
        column += span
    titles = ["Run", *(_latex_escape(table.measures[place].title) for place in places)]
    if table.unconstrained:
        heads.append("")
        titles.append(r"$\Delta$ ppl")
    lines = [
        "% needs \\usepackage{booktabs}; small: 95 % bootstrap interval over prompts",
        rf"\begin{{tabular}}{{l{'r' * (len(titles) - 1)}}}",
        r"\toprule",
        " & ".join(["", *heads]) + r" \\",
        "".join(rules),
        " & ".join(titles) + r" \\",
        r"\midrule",
    ]
    for index in sorted(range(len(table.names)), key=lambda index: table.names[index] != table.unconstrained):
        cells = [_latex_escape(table.names[index]), *(_latex_cell(table.rows[index][place]) for place in places)]
        if table.unconstrained:
            cells.append(f"${distance}$" if (distance := distance_text(table.distances[index])) else "")
        lines.append(" & ".join(cells) + r" \\")
        if table.names[index] == table.unconstrained and len(table.names) > 1:
            lines.append(r"\midrule")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _signed(table: Table) -> list[tuple[str, Cell]]:
    pairs = []
    for name, row in zip(table.names, table.rows, strict=True):
        pairs += [(_markdown_escape(name), cell) for cell in row if cell]
    return pairs


def _markdown_cell(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    number = f"**{cell.text}**" if cell.best else cell.text
    gaps = f" ({cell.gaps} gaps)" if cell.gaps else ""
    return f"{number} [{cell.interval}]{gaps}"


def _latex_cell(cell: Cell | None) -> str:
    if cell is None:
        return "--"
    number = rf"\textbf{{{cell.text}}}" if cell.best else cell.text
    return rf"{number} {{\tiny {cell.interval.replace('-', '--')}}}"


def _markdown_escape(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("`", "'")


def _latex_escape(text: str) -> str:
    for plain, written in (
        ("\\", r"\textbackslash "),
        ("&", r"\&"),
        ("%", r"\%"),
        ("_", r"\_"),
        ("#", r"\#"),
        ("$", r"\$"),
        ("{", r"\{"),
        ("}", r"\}"),
        ("~", r"\textasciitilde "),
        ("^", r"\textasciicircum "),
    ):
        text = text.replace(plain, written)
    return text
