"""The one exception that a user is meant to read."""


class MucolaError(Exception):
    """Something the user can put right: the message says what was wrong and what to do.

    The command line prints it as one sentence and exits with code 2; a traceback would be noise.
    """
