"""``python -m evaluation``: the same as ``mucola evaluate``."""

from evaluation.command import command
from mucola.cli import run

run(command)
