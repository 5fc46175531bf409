"""Errors that end a command: their text is printed after its name."""


class ServiceUnavailable(LookupError):
    """The service is missing, unreachable or refuses the order. Exit code 1."""


class CannotRun(Exception):
    """A setting, a file or the model cannot be used, and a retry does not help. Exit code 2."""
