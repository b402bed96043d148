"""Cancel tokens for tests."""

from collections.abc import Callable

from contexture.data.cancel import CancelToken


class Calling(CancelToken):
    """A token that calls a function, which may raise."""

    def __init__(self, function: Callable[[], None]) -> None:
        self.function = function

    def check(self) -> None:
        """Calls it."""
        self.function()
