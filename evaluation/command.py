"""``mucola evaluate``: runs to reports, and the smaller tools beside it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mucola.cli import parser
from mucola.errors import MucolaError

if TYPE_CHECKING:
    from evaluation.report import Results
    from evaluation.table import Cell

DESCRIPTION = (
    "Measure any number of runs side by side and write metrics.json, table.md, table.tex and report.html. "
    "Further: `mucola evaluate trace FILE` (watch a chain), `sheets A B` and `preferences ANSWERS` (human "
    "evaluation), `scorers` (list them), `train-scorer` (make one), `agreement` (compare some with Perspective)."
)


def command(arguments: Sequence[str]) -> None:
    """Run ``mucola evaluate ...``."""
    if arguments and arguments[0] in TOOLS:
        TOOLS[arguments[0]](arguments[1:])
    else:
        _evaluate(arguments)


def _evaluate(arguments: Sequence[str]) -> None:
    made = parser("evaluate", DESCRIPTION)
    made.add_argument("runs", nargs="*", help="Run folders or JSONL files of generations.")
    made.add_argument("--suite", type=str, default=None, help="toxicity, sentiment, keywords or translation.")
    made.add_argument("-o", "--output", type=str, default="out", help="Folder of the report.")
    made.add_argument("--toxicity", type=str, default="ngrams-toxicity", help="Scorer of toxicity.")
    made.add_argument(
        "--sentiment",
        type=list[str],
        default=["ngrams-sst2", "ngrams-yelp", "ngrams-imdb"],
        help="Scorers of sentiment, as a list in brackets.",
    )
    made.add_argument("--grammar", type=str, default="grammar", help="Scorer of grammar, or `none`.")
    made.add_argument("--judge", type=str, default="smollm2-135m", help="Language model for perplexity, or `none`.")
    made.add_argument("--target", type=str, default="positive", help="Wanted sentiment: positive or negative.")
    made.add_argument("--inflected", type=bool, default=False, help="Count regular inflections of keywords as well.")
    made.add_argument("--unconstrained", type=str | None, default=None, help="Name of the unconstrained run.")
    made.add_argument("--samples", type=int | None, default=None, help="Use the first so many samples of each prompt.")
    made.add_argument(
        "--allow_gaps", type=bool, default=False, help="Count samples without a score instead of failing."
    )
    given = made.parse_args(arguments)
    if not given.runs:
        raise MucolaError("Give at least one run: mucola evaluate RUN... --suite SUITE -o FOLDER.")
    if given.suite is None:
        raise MucolaError("Which suite? Add --suite toxicity, sentiment, keywords or translation.")

    from evaluation.evaluate import evaluate
    from evaluation.suites import Options

    options = Options(
        suite=given.suite,
        toxicity=given.toxicity,
        sentiment=tuple(given.sentiment),
        grammar=given.grammar,
        judge=given.judge,
        target=given.target,
        inflected=given.inflected,
    )
    results = evaluate(given.runs, options, given.unconstrained, given.samples, given.allow_gaps)
    _finish(results, given.output)


def _finish(results: Results, output: str) -> None:
    """Write the report, show the table, say what a reader must know."""
    from rich.console import Console
    from rich.table import Table

    from evaluation.report import notes, write_report
    from evaluation.table import heading

    page = write_report(results, Path(output))
    made = results.table()
    shown = Table(box=None, pad_edge=False)
    shown.add_column("")
    for name in made.names:
        shown.add_column(name, justify="right", overflow="fold")
    for index, measure in enumerate(made.measures):
        cells = [row[index] for row in made.rows]
        shown.add_row(heading(measure), *(_terminal(cell) for cell in cells))
    Console().print(shown)
    for note in notes(results):
        sys.stderr.write(f"note: {note}\n")
    sys.stdout.write(f"{page}\n")


def _terminal(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    return f"[bold]{cell.text}[/bold]" if cell.best else cell.text


def _scorers(arguments: Sequence[str]) -> None:
    made = parser("evaluate scorers", "List the scorers that have a name, and how good they are on held-out data.")
    made.parse_args(arguments)
    from evaluation.report import quality_text
    from evaluation.scorers.presets import PRESETS, SHIPPED

    for name, preset in PRESETS.items():
        sys.stdout.write(f"{name:<18} {preset.attribute:<10} {preset.description}\n")
        config = SHIPPED / name / "config.json"
        if config.is_file():
            quality = json.loads(config.read_text(encoding="utf-8"))["held_out"]
            sys.stdout.write(f"{'':<29} {quality_text(quality)}\n")


def _agreement(arguments: Sequence[str]) -> None:
    made = parser("evaluate agreement", "Compare toxicity scorers with the Perspective scores in RealToxicityPrompts.")
    made.add_argument("file", type=str, help="Rows of RealToxicityPrompts (.jsonl or .jsonl.gz).")
    made.add_argument("--scorers", type=list[str], default=["ngrams-toxicity"], help="Scorers, as a list in brackets.")
    given = made.parse_args(arguments)
    from evaluation.calibration import perspective_agreement, perspective_texts
    from evaluation.report import quality_text
    from evaluation.scorers import load_scorer

    texts = perspective_texts(given.file)
    for name in given.scorers:
        scorer = load_scorer(name)
        sys.stdout.write(f"{quality_text({scorer.revision: perspective_agreement(scorer, texts)})}\n")


def _train_scorer(arguments: Sequence[str]) -> None:
    from evaluation.train_scorer import ScorerTraining, train_scorer

    made = parser("evaluate train-scorer", "Train a scorer on labelled texts and test it on others.")
    made.add_class_arguments(ScorerTraining, None)
    given = made.instantiate_classes(made.parse_args(arguments))
    options = {name: value for name, value in given.as_dict().items() if name != "config"}
    from evaluation.progress import progress
    from evaluation.report import quality_text

    training = ScorerTraining(**options)
    with progress("training", 0) as advance:
        scorer = train_scorer(training, advance)
    sys.stdout.write(f"{scorer.revision}  {quality_text(scorer.quality)}\n")


def _trace(arguments: Sequence[str]) -> None:
    made = parser("evaluate trace", "Make a page on which one watches a chain, step by step.")
    made.add_argument("trace", type=str, help="A trace file of the sampler (.json or .json.gz).")
    made.add_argument("-o", "--output", type=str | None, default=None, help="The page; beside the trace if not given.")
    given = made.parse_args(arguments)
    from evaluation.trace_viewer import write_viewer

    sys.stdout.write(f"{write_viewer(given.trace, given.output)}\n")


def _sheets(arguments: Sequence[str]) -> None:
    made = parser("evaluate sheets", "Make blinded A/B sheets of two runs for human annotators.")
    made.add_argument("first", type=str, help="A run.")
    made.add_argument("second", type=str, help="The run it is compared with.")
    from evaluation.human import SheetSettings, write_sheets

    made.add_class_arguments(SheetSettings, None)
    made.add_argument("-o", "--output", type=str, default="sheets", help="Folder of the sheets.")
    given = made.instantiate_classes(made.parse_args(arguments)).as_dict()
    settings = SheetSettings(**{name: given[name] for name in SheetSettings.__dataclass_fields__})
    for path in write_sheets(given["first"], given["second"], settings, given["output"]):
        sys.stdout.write(f"{path}\n")


def _preferences(arguments: Sequence[str]) -> None:
    made = parser("evaluate preferences", "Aggregate the answers of annotators: shares, ties, Krippendorff's alpha.")
    made.add_argument("answers", nargs="*", help="Answer files of annotators (.json or .csv), one each.")
    made.add_argument("--key", type=str, default="sheets/key.json", help="The key that `sheets` wrote.")
    made.add_argument("-o", "--output", type=str | None, default=None, help="Also write the result as JSON.")
    given = made.parse_args(arguments)
    from evaluation.human import aggregate, preferences_text

    result = aggregate(given.answers, given.key)
    if given.output:
        Path(given.output).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(preferences_text(result))


TOOLS: dict[str, Callable[[Sequence[str]], None]] = {
    "trace": _trace,
    "sheets": _sheets,
    "preferences": _preferences,
    "scorers": _scorers,
    "agreement": _agreement,
    "train-scorer": _train_scorer,
}
