"""``mucola models list | pull NAME | path NAME``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mucola import model_store
from mucola.cli import parser
from mucola.errors import MucolaError
from mucola.names import unknown


def command(arguments: Sequence[str]) -> None:
    """Entry point of ``mucola models``."""
    top = parser("models", "List, fetch and locate the models that need no model hub.")
    actions = top.add_subcommands(dest="action")
    for name, text in (
        ("list", "the built-in models"),
        ("pull", "fetch a model"),
        ("path", "print its folder"),
    ):
        action = parser(f"models {name}", text)
        if name != "list":
            action.add_argument("name", type=str, help="name of a built-in model")
        actions.add_subcommand(name, action, help=text)
    chosen = top.parse_args(list(arguments))
    if chosen.action == "list":
        sys.stdout.write(_listing())
    elif chosen.action == "pull":
        sys.stdout.write(f"{_pull(chosen.pull.name)}\n")
    else:
        sys.stdout.write(f"{_path(chosen.path.name)}\n")


def _listing() -> str:
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "what", "licence", "download", "state", box=None, pad_edge=False)
    for model in model_store.BUILT_IN.values():
        state = "ready" if model_store.cached_path(model.name) else "not fetched"
        table.add_row(model.name, model.description, model.license, f"{model.download_bytes / 1e6:.0f} MB", state)
    console = Console(width=None if sys.stdout.isatty() else 120)
    with console.capture() as text:
        console.print(table)
    return text.get()


def _pull(name: str) -> str:
    from rich.console import Console

    with Console(stderr=True).status(f"fetching and converting {name} (once; about a minute)"):
        return str(model_store.pull(name))


def _path(name: str) -> str:
    if name not in model_store.BUILT_IN:
        raise unknown("built-in model", name, model_store.BUILT_IN)
    folder = model_store.cached_path(name)
    if folder is None:
        raise MucolaError(f"{name} has not been fetched yet; run `mucola models pull {name}`.")
    return str(folder)
