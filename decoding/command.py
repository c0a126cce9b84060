"""``mucola decode``: continuations of many prompts, on one device or many."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from mucola.cli import parser
from mucola.commands.sample import add_constraints, written_constraints
from mucola.errors import MucolaError

if TYPE_CHECKING:
    from lightning.fabric import Fabric

    from decoding.folder import RunFolder
    from decoding.run import Plan
    from mucola.language_model import LanguageModel

Dtype = Literal["float32", "bfloat16", "float16"]

DESCRIPTION = (
    "Continue many prompts under constraints, on one device or many. The output folder gets run.json and a "
    "rank-N.jsonl of each process; the same command takes up a run that was stopped, however it was stopped."
)
WHERE_AND_HOW_MANY = ("config", "output", "resume", "accelerator", "devices", "num_nodes", "batch_size")
"""Options that do not change what is written, and may change when a run is resumed."""
SHORTHANDS = ("constraint", "keyword", "exclude", "positive", "negative", "toxic")
"""Options that are all said again, in one notation, under ``constraints``."""


def command(arguments: Sequence[str]) -> None:
    """Entry point of ``mucola decode``; what goes wrong on all ranks is said by rank 0 alone."""
    # When rank 0 ends, the others' connections break; torch would print a stack for each.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from lightning.fabric.utilities import rank_zero_only

    try:
        _decode(arguments)
    except MucolaError:
        if rank_zero_only.rank == 0:  # type: ignore[attr-defined]
            raise
        sys.exit(2)


def arguments_parser() -> Any:
    """The options of the command."""
    import decoding.baselines  # noqa: F401  (so that methods can be named without their module)
    from decoding.launch import Accelerator
    from decoding.methods import Method
    from decoding.prompts import PromptFile

    made = parser("decode", DESCRIPTION)
    made.add_class_arguments(PromptFile, "prompts")
    made.add_argument("--output", type=str, required=True, help="folder of the run")
    made.add_argument("--model", type=str, default="smollm2-135m", help="built-in name, folder or Hugging Face id")
    made.add_argument("--dtype", type=Dtype, default="float32", help="of the model; energies and chains are fp32")
    made.add_argument("--compile", type=bool, default=False, help="torch.compile what does not depend on the prompts")
    made.add_argument("-n", "--num_samples", type=int, default=1, help="how many continuations of each prompt")
    made.add_argument("--length", type=int | list[int], default=20, help="tokens; of several lengths, the best is kept")
    made.add_argument("--continue_to", type=int | None, help="go on with plain nucleus sampling up to so many tokens")
    made.add_argument("--nucleus", type=float, default=0.96, help="probability mass of that continuation")
    made.add_argument("--seed", type=int, default=0)
    add_constraints(made)
    made.add_subclass_arguments(Method, "method", default={"class_path": "decoding.methods.MuCoLa"})
    made.add_argument("--accelerator", type=Accelerator, default="auto", help="what to run on")
    made.add_argument("--devices", type=int | None, help="processes on each machine: all GPUs, or one CPU process")
    made.add_argument("--num_nodes", type=int | None, help="machines")
    made.add_argument("--resume", type=bool, default=True, help="go on with a run that is in the folder")
    return made


def _decode(arguments: Sequence[str]) -> None:
    made = arguments_parser()
    parsed = made.parse_args(list(arguments))
    options = made.instantiate_classes(parsed)

    from decoding.folder import RunFolder
    from decoding.launch import launch
    from decoding.provenance import steered, versions, without
    from decoding.run import Plan

    prompts = options.prompts.read()
    constraints = written_constraints(options)
    plan = Plan(
        entries=prompts.entries,
        method=options.method,
        constraints=constraints,
        num_samples=options.num_samples,
        lengths=[options.length] if isinstance(options.length, int) else options.length,
        continue_to=options.continue_to,
        nucleus=options.nucleus,
        seed=options.seed,
    )
    info: dict[str, Any] = {
        "config": without(json.loads(made.dump(parsed, format="json")), (*WHERE_AND_HOW_MANY, *SHORTHANDS)),
        "constraints": constraints,
        "prompts": {"count": len(prompts.entries), "fingerprint": prompts.fingerprint},
        "steered": steered(constraints if plan.method.follows_constraints else [], plan.method.steering()),
        "versions": versions(),
    }
    folder = RunFolder(options.output)
    folder.check(info, options.resume)
    fabric = launch(options.accelerator, options.devices, options.num_nodes)
    if fabric.is_global_zero and prompts.skipped:
        sys.stderr.write(f"{len(prompts.skipped)} lines were left out, the first: {prompts.skipped[0]}\n")
    _run(plan, folder, fabric, info, options)


def _run(plan: Plan, folder: RunFolder, fabric: Fabric, info: dict[str, Any], options: Any) -> None:
    from rich.console import Console
    from torch.distributed import DistError

    from decoding.crew import Crew
    from decoding.progress import RunProgress
    from decoding.provenance import model_facts
    from decoding.run import missing, work

    crew = Crew(fabric)
    try:
        language_model = load(options.model, options.dtype, options.compile, fabric)
        plan.prepare(language_model)
        info["models"] = {"language_model": model_facts(language_model)}
        if crew.rank > 0:
            work(plan, json.loads(crew.share("places")), folder, crew, language_model)
            crew.leave()
            return
        places, before = missing(plan, folder, info)
        crew.share("places", json.dumps(places))
        with RunProgress(len(plan), before, crew.counts, Console(stderr=True)) as progress:
            try:
                work(plan, places, folder, crew, language_model)
                crew.leave()
            except KeyboardInterrupt:
                done = (before + crew.counts()).done
                sys.stderr.write(f"\n{done} of {len(plan)} samples are kept; the same command makes the others.\n")
                raise
    except MucolaError as error:
        if crew.rank > 0:
            crew.fail(str(error))
        raise
    except DistError:
        if crew.rank == 0:
            raise
        sys.exit(1)  # rank 0 has ended, and has said why
    finally:
        folder.close()
    sys.stdout.write(f"{folder.path}: {progress.summary()}\n")


def load(name: str, dtype: Dtype, compile: bool, fabric: Fabric) -> LanguageModel:
    """The language model on this rank's device.

    Attention looks at prompts of any number and length, a new shape at nearly every step, which would have the
    compiler at work for ever. The feed-forward blocks, most of the arithmetic, do not: they are what is compiled.
    """
    from mucola.language_model import LanguageModel
    from mucola.model_store import load_causal_lm

    model, tokenizer = load_causal_lm(name, dtype=dtype)
    model = model.to(fabric.device)
    for path, module in model.named_modules() if compile else ():
        if path.endswith(".mlp"):
            module.compile(dynamic=True)
    return LanguageModel(model, tokenizer, name)
