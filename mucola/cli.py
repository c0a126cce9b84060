"""The ``mucola`` command: it finds the sub-command and hands over; nothing heavy is imported here."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn

from mucola.errors import MucolaError
from mucola.names import unknown

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

COMMANDS = {
    "demo": ("mucola.commands.demo", "see plain samples beside constrained ones, on a real model"),
    "sample": ("mucola.commands.sample", "continue a prompt under constraints"),
    "decode": ("decoding.command", "continue many prompts under constraints, on one device or many"),
    "evaluate": ("evaluation.command", "measure runs side by side and write a report"),
    "experiment": ("mucola.commands.experiment", "run an experiment of the paper from training to report"),
    "models": ("mucola.commands.models", "list, fetch and locate the built-in models"),
    "train": ("constraints_training.command", "train attribute models, and tell how good one is"),
}

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of malloc.h."""
KEPT_BYTES = 2**30

USAGE = "usage: mucola [-h] [--version] COMMAND ..."


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``mucola COMMAND ...`` and exit."""
    run(_dispatch, sys.argv[1:] if arguments is None else arguments)


def run(command: Callable[[Sequence[str]], None], arguments: Sequence[str] | None = None) -> None:
    """Run a sub-command: a mistake of the user's is one sentence and exit code 2, never a traceback."""
    _keep_freed_memory()
    try:
        command(sys.argv[1:] if arguments is None else arguments)
    except MucolaError as error:
        sys.exit(_fail(str(error)))
    except BrokenPipeError:
        sys.stderr.close()  # the reader went away (`mucola ... | head`): nothing is wrong
    except KeyboardInterrupt:
        sys.stderr.write("\nmucola: interrupted\n")
        sys.exit(130)


def _keep_freed_memory() -> None:
    """Let glibc keep large blocks that were freed, for the next ones.

    It returns buffers of the vocabulary's size to the system and asks for them again at every token; each of their
    pages then costs a fault, which can take as long as the computation.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def parser(command: str, description: str, **options: Any) -> ArgumentParser:
    """A parser with what every sub-command has: YAML configs, dotted overrides, ``--print_config``."""
    from jsonargparse import ArgumentParser, set_parsing_settings

    class Parser(ArgumentParser):
        def parse_args(self, args: Any = None, *rest: Any, **more: Any) -> Any:
            _check_configs(args or [])
            return super().parse_args(args, *rest, **more)

        def error(self, message: str, ex: Exception | None = None) -> NoReturn:
            raise MucolaError(f"{' '.join(message.split())} (See `{self.prog} --help`.)") from ex

    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    made = Parser(prog=f"mucola {command}", description=description, **options)
    made.add_argument("--config", action="config", help="YAML file with any of these options; may be repeated.")
    return made


def _check_configs(arguments: Sequence[str]) -> None:
    """Name the file and the line of YAML that cannot be read."""
    import yaml

    given = list(arguments)
    for name in [after for flag, after in pairwise(given) if flag == "--config"]:
        try:
            with open(name, encoding="utf-8") as file:
                yaml.safe_load(file)
        except OSError as error:
            raise MucolaError(f"The config file {name} cannot be read: {error.strerror}.") from error
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = f", line {mark.line + 1}" if mark else ""
            raise MucolaError(f"{name}{line}: {getattr(error, 'problem', error)}; this is not valid YAML.") from error


def _dispatch(arguments: Sequence[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(_help())
        return
    name, *rest = arguments
    if name == "--version":
        from importlib.metadata import version

        sys.stdout.write(f"mucola {version('mucola')}\n")
        return
    if name not in COMMANDS:
        raise unknown("option" if name.startswith("-") else "sub-command", name, COMMANDS)
    import_module(COMMANDS[name][0]).command(rest)


def _help() -> str:
    rows = "".join(f"  {name:<11} {text}\n" for name, (_, text) in COMMANDS.items())
    return (
        f"{USAGE}\n\nSample text from a language model subject to constraints.\n\ncommands:\n{rows}\n"
        "`mucola COMMAND --help` tells more about each.\n"
    )


def _fail(message: str) -> int:
    sys.stderr.write(f"mucola: error: {message}\n")
    return 2
