"""``mucola experiment NAME``: train what is missing, decode every row of a table, evaluate them side by side.

An experiment is a YAML file of options for ``mucola train``, ``decode`` and ``evaluate``; this command only runs
those, each in a process of its own, and remembers which of them are done.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from threading import Event

from mucola.cli import parser
from mucola.errors import MucolaError
from mucola.names import unknown

CONFIGS = Path("configs/experiments")


@dataclass(frozen=True)
class Experiment:
    """What a table consists of; every text is options of a command as one would type them."""

    title: str
    rows: Mapping[str, str]
    """``mucola decode``, for each row of the table."""
    evaluate: str
    """``mucola evaluate``, over all rows."""
    decode: str = ""
    """What all rows have in common."""
    models: Mapping[str, str] = field(default_factory=dict)
    """``mucola train fit``, by the folder of the run, for models that rows name."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Further options of such a model where there is a folder with data, instead of the hub."""
    each: Mapping[str, Sequence[str | int] | Mapping[str | int, Mapping[str, str | float]]] = field(
        default_factory=lambda: {"": [""]}
    )
    """One table for each combination of these; ``{name}`` in the options is filled in, and so is what comes with it."""
    tables: Mapping[str, Mapping[str, str | float]] = field(default_factory=dict)
    """What is filled in otherwise in single tables, by their name."""
    quick: Mapping[str, str] = field(default_factory=dict)
    """Further options of ``train``, ``decode`` and ``evaluate`` that make the whole a matter of minutes."""

    @classmethod
    def load(cls, name: str) -> Experiment:
        """The experiment of that name, or in that file."""
        import yaml

        path = Path(name) if name.endswith((".yaml", ".yml")) else CONFIGS / f"{name}.yaml"
        if not path.is_file():
            known = sorted(file.stem for file in CONFIGS.glob("*.yaml"))
            if not known:
                raise MucolaError(f"There is no {path}; experiments are run from a copy of mucola's repository.")
            raise unknown("experiment", name, known)
        try:
            return cls(**yaml.safe_load(path.read_text(encoding="utf-8")))
        except (TypeError, yaml.YAMLError) as error:
            raise MucolaError(f"{path} is not an experiment: {' '.join(str(error).split())}") from error

    def fillings(self) -> dict[str, dict[str, str]]:
        """What is filled in, by the name of the table."""
        fillings = {}
        for values in product(*self.each.values()):
            filled: dict[str, str | float] = dict(zip(self.each, values, strict=True))
            for value, known in zip(values, self.each.values(), strict=True):
                filled |= known[value] if isinstance(known, Mapping) else {}
            table = "-".join(filter(None, map(str, values)))
            filled |= self.tables.get(table, {})
            fillings[table] = {name: str(value) for name, value in filled.items()}
        for table in self.tables:
            if table not in fillings:
                raise unknown("table", table, fillings)
        return fillings


@dataclass(frozen=True)
class Step:
    """One command, which writes the folder that its last argument names."""

    arguments: list[str]

    @property
    def kind(self) -> str:
        """train, decode or evaluate"""
        return self.arguments[0]

    @property
    def target(self) -> str:
        """What it writes; beside it stand its log and, once it is done, a record of it."""
        return self.arguments[-1]


def command(arguments: Sequence[str]) -> None:
    """Entry point of ``mucola experiment``."""
    made = parser("experiment", "Run an experiment of the paper: train what is missing, decode, evaluate. It resumes.")
    made.add_argument("name", type=str, help="of a file in configs/experiments, or a YAML file")
    made.add_argument("--folder", type=str | None, help="where runs/ and out/ are (default: here, or quick/)")
    made.add_argument("--quick", type=bool, default=False, help="the same commands at toy size, in minutes")
    made.add_argument("--only", type=list[str], default=[], help="these rows alone, as a list in brackets")
    made.add_argument("--table", type=str | None, help="this table alone, where there are several")
    made.add_argument("--judge", type=str | None, help="report again, with this language model for perplexity")
    made.add_argument("--jobs", type=int, default=1, help="commands that run at a time, sharing the cores")
    made.add_argument("--show", type=bool, default=False, help="print the commands, run nothing")
    options = made.parse_args(list(arguments))
    if options.jobs < 1:
        raise MucolaError(f"--jobs must be at least 1, not {options.jobs}.")
    experiment = Experiment.load(options.name)
    stages = list(plan(experiment, Path(options.name).stem, options.only, options.table, options.quick, options.judge))
    folder = Path(options.folder or ("quick" if options.quick else "."))
    if options.show:
        for step in (step for stage in stages for step in stage):
            sys.stdout.write(f"mucola {shlex.join(step.arguments)}\n")
        return
    sys.stdout.write(f"{experiment.title}\n")
    seconds = sum(run(stage, folder, options.jobs) for stage in stages)
    reports = ", ".join(str(folder / step.target / "report.html") for step in stages[-1])
    sys.stdout.write(f"{reports}: {seconds / 60:.0f} minutes of CPU time in all\n")


def plan(
    experiment: Experiment,
    name: str,
    only: Sequence[str] = (),
    table: str | None = None,
    quick: bool = False,
    judge: str | None = None,
) -> Iterator[list[Step]]:
    """What has to be run, in stages: models, rows, reports."""
    for row in only:
        if row not in experiment.rows:
            raise unknown("row", row, experiment.rows)
    tables = experiment.fillings()
    if table is not None:
        if table not in tables:
            raise unknown("table", table, tables)
        tables = {table: tables[table]}
    less = {
        kind: shlex.split(experiment.quick.get(kind, "") if quick else "") for kind in ("train", "decode", "evaluate")
    }
    # The reports of another judge lie beside the experiment's own.
    other = ["--judge", judge] if judge else []
    home = "-".join(["out", *other[1:]]).replace("/", "--")
    rows, reports = [], []
    for key, values in tables.items():
        folders = []
        for row in only or experiment.rows:
            written = f"{experiment.decode} {experiment.rows[row]}".format(**values)
            output = "/".join(filter(None, ("runs/experiments", name, key, row)))
            folders.append(output)
            rows.append(Step(["decode", *_options(written), *less["decode"], "--output", output]))
        out = "/".join(filter(None, (home, name, key)))
        judged = _options(experiment.evaluate.format(**values))
        reports.append(Step(["evaluate", *folders, *judged, *less["evaluate"], *other, "-o", out]))
    needed = " ".join(_text(step.arguments) for step in rows)
    yield [_training(experiment, run, less["train"]) for run in experiment.models if run in needed]
    yield rows
    yield reports


def _training(experiment: Experiment, run: str, less: Sequence[str]) -> Step:
    local = experiment.files.get(run, "") if data_folder().is_dir() else ""
    options = _options(f"{experiment.models[run]} {local}")
    return Step(["train", "fit", *options, *less, "--trainer.default_root_dir", run])


def data_folder() -> Path:
    """Where prompts are, and labelled texts if they shall not come from the hub: ``$MUCOLA_DATA``, else ``data``."""
    return Path(os.environ.get("MUCOLA_DATA", "data")).resolve()


def _options(written: str) -> list[str]:
    """Options as a list; config files by their full path, for commands run in another folder."""
    given = shlex.split(written)
    return [
        str(Path(value).resolve()) if before == "--config" else value
        for before, value in zip(["", *given], given, strict=False)
    ]


def _text(arguments: Sequence[str]) -> str:
    """The options and what stands in their config files."""
    files = [Path(value) for before, value in zip(["", *arguments], arguments, strict=False) if before == "--config"]
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise MucolaError(f"The config file {missing[0]} does not exist.")
    return " ".join([*arguments, *(file.read_text(encoding="utf-8") for file in files)])


def run(steps: Sequence[Step], folder: Path, jobs: int) -> float:
    """Run the steps of a stage, a few at a time; the CPU seconds that they took, now or when they were done before."""
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    environment = {"OMP_NUM_THREADS": threads, **os.environ, "MUCOLA_DATA": str(data_folder())}
    failed = Event()

    def work(step: Step) -> float:
        if failed.is_set():
            raise CancelledError
        try:
            return _run(step, folder, environment)
        except BaseException:
            failed.set()  # before this thread takes up the next step
            raise

    with ThreadPoolExecutor(jobs) as pool:
        begun = [pool.submit(work, step) for step in steps]
        try:
            return sum(step.result() for step in begun)
        except BaseException:
            failed.set()
            raise


def _run(step: Step, folder: Path, environment: Mapping[str, str]) -> float:
    """Run one step unless it was done before, with its output in a log; its CPU seconds."""
    log, record = (folder / f"{step.target}.{ending}" for ending in ("log", "json"))
    if (before := _done(step, record, folder)) is not None:
        return before
    log.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    command = [sys.executable, "-m", "mucola", *step.arguments, *_resumed(step, folder)]
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=file, stderr=file)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        reason = lines[-1].removeprefix("mucola: error: ") if lines else f"exit code {process.returncode}"
        raise MucolaError(f"{step.target}: {reason} (All of it is in {log}; the same command goes on from here.)")
    seconds = usage.ru_utime + usage.ru_stime
    facts = {"arguments": step.arguments, "options": _text(step.arguments), "cpu_seconds": round(seconds, 1)}
    record.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"  {step.kind:<9} {step.target:<55} {time.monotonic() - started:5.0f} s\n")
    sys.stdout.flush()
    return seconds


def _done(step: Step, record: Path, folder: Path) -> float | None:
    """The CPU seconds of a step that was done before; a report is always made anew."""
    if step.kind == "evaluate":
        return None
    if record.is_file():
        facts = json.loads(record.read_text(encoding="utf-8"))
        if facts.get("options") == _text(step.arguments):
            return float(facts["cpu_seconds"])
    # A model may come from elsewhere: another experiment, another machine.
    return 0.0 if (folder / step.target / "export" / "config.json").is_file() else None


def _resumed(step: Step, folder: Path) -> list[str]:
    """A training that was stopped goes on; decoding does so by itself."""
    if step.kind == "train" and (folder / step.target / "checkpoints" / "last.ckpt").is_file():
        return ["--ckpt_path", "last"]
    return []
