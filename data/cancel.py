"""Stopping long work early: the work asks a token between its pieces."""


class CancelToken:
    """`check` raises where the work is to stop. This one never does; `train.run.signals.Signals` does so after SIGTERM
    and Ctrl-C."""

    # An exception and no flag: it unwinds every context manager on its way, so that nothing half written is left.
    def check(self) -> None:
        """Returns where the work may continue."""


# One object serves every caller: it has no state.
NEVER = CancelToken()
"""The default: work that nobody stops."""
