"""The ``mucola`` command: it finds the sub-command and hands over; nothing heavy is imported here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mucola.errors import MucolaError
from mucola.names import unknown

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

COMMANDS = {
    "sample": ("mucola.commands.sample", "continue a prompt under constraints"),
    "evaluate": ("evaluation.command", "measure runs side by side and write a report"),
    "models": ("mucola.commands.models", "list, fetch and locate the built-in models"),
    "train": ("constraints_training.command", "train attribute models, and tell how good one is"),
}

USAGE = "usage: mucola [-h] [--version] COMMAND ..."


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``mucola COMMAND ...`` and exit."""
    run(_dispatch, sys.argv[1:] if arguments is None else arguments)


def run(command: Callable[[Sequence[str]], None], arguments: Sequence[str] | None = None) -> None:
    """Run a sub-command: a mistake of the user's is one sentence and exit code 2, never a traceback."""
    try:
        command(sys.argv[1:] if arguments is None else arguments)
    except MucolaError as error:
        sys.exit(_fail(str(error)))
    except BrokenPipeError:
        sys.stderr.close()  # the reader went away (`mucola ... | head`): nothing is wrong
    except KeyboardInterrupt:
        sys.stderr.write("\nmucola: interrupted\n")
        sys.exit(130)


def parser(command: str, description: str, **options: Any) -> ArgumentParser:
    """A parser with what every sub-command has: YAML configs, dotted overrides, ``--print_config``."""
    from jsonargparse import ArgumentParser

    made = ArgumentParser(prog=f"mucola {command}", description=description, **options)
    made.add_argument("--config", action="config", help="YAML file with any of these options; may be repeated.")
    return made


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
    rows = "".join(f"  {name:<10} {text}\n" for name, (_, text) in COMMANDS.items())
    return (
        f"{USAGE}\n\nSample text from a language model subject to constraints.\n\ncommands:\n{rows}\n"
        "`mucola COMMAND --help` tells more about each.\n"
    )


def _fail(message: str) -> int:
    sys.stderr.write(f"mucola: error: {message}\n")
    return 2
