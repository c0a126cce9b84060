"""``python -m constraints_training`` is ``mucola train``."""

from constraints_training.command import command
from mucola.cli import run

if __name__ == "__main__":
    run(command)
