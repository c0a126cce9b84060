"""``python -m decoding`` is ``mucola decode``."""

from decoding.command import command
from mucola.cli import run

if __name__ == "__main__":
    run(command)
