"""The errors that a user's input can cause: one line that names the value and the remedy."""


class TacitError(ValueError):
    """What was wrong, the value, and what to do instead. The command line prints it and exits with 2."""


class ArgumentError(TacitError, TypeError):
    """A call with a value of another kind than its annotation, or with an argument too many or too few."""


class StorageError(TacitError):
    """The disk refused a write, or what lies there cannot be read."""
