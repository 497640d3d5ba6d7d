"""The errors that a user's input can cause: one line that names the value and the remedy."""


class TacitError(ValueError):
    """What was wrong, the value, and what to do instead, in one line. The command line prints it and exits with 2.

    It is a `ValueError`, so that code which does not know Tacit can catch it.

    >>> import tacit
    >>> try:
    ...     tacit.Level("private", epsilon=-1, delta=1e-5)
    ... except tacit.TacitError as error:
    ...     print(error)
    epsilon of level 'private' must be positive, not -1.0; leave it out to opt out of privacy
    """


class ArgumentError(TacitError, TypeError):
    """A call with a value of another kind than its annotation, or with an argument too many or too few."""


class StorageError(TacitError):
    """The disk refused a write, or what lies there cannot be read. Nothing is wrong with the call: try again with room.

    >>> import tacit
    >>> issubclass(tacit.StorageError, tacit.TacitError)
    True
    """
