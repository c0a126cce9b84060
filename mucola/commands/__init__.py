"""The sub-commands of the core package, one file each with a ``command(arguments)`` function."""
