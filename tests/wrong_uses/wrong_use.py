"""One wrong use, and what is said of it."""

import typing
from collections.abc import Callable


class WrongUse(typing.NamedTuple):
    """Something wrong, and the three parts of its error.

    Attributes:
        wanted: str, how the message begins.
        received: str, what came, as the message says it.
        advice: str, what to do, from the message.
        use: function without arguments that does it.
        error: class of the exception.
    """

    wanted: str
    received: str
    advice: str
    use: Callable
    error: type = ValueError
