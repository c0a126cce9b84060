"""``python -m mucola``: the same as the ``mucola`` command."""

from mucola.cli import main

main()
