"""Stopping long work early: the work asks a token between its pieces."""


class CancelToken:
    """`check` raises where the work is to stop. This one never does; `train.run.signals.Signals` does so after SIGTERM
    and Ctrl-C."""

    def check(self) -> None:
        """Returns where the work may continue."""


NEVER = CancelToken()
"""The default: work that nobody stops."""
