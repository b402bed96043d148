"""SIGTERM and Ctrl-C: noted, answered between two steps, so that nothing is lost. Needs no jax to be listening."""

import os
import signal
import types
from typing import Any

EXIT_CODE = {signal.SIGTERM: 75, signal.SIGINT: 130}
NAME = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}


class Interrupted(BaseException):
    """The run was asked to stop, and what it did until then is safe. No `except Exception` takes it for a failure."""

    def __init__(self, number: int, state: str) -> None:
        super().__init__(f"{NAME[signal.Signals(number)]}: {state}")
        self.code = EXIT_CODE[signal.Signals(number)]


class Signals:
    """Listens from creation to close. A signal is only noted: raised anywhere, it would break into imports and reads.
    Before training, `check` raises it between two pieces of work; while training, `stop` tells of it between two steps.
    A second signal that is Ctrl-C ends the process."""

    def __init__(self, state: str = "stopped before training went on; the same command goes on from there") -> None:
        """state: what is true when `check` stops the work."""
        self.state = state
        self.received = 0
        self._together = False
        self._before: dict[int, Any] = {}
        for number in EXIT_CODE:
            self._before[number] = signal.signal(number, self._note)

    def share(self) -> None:
        """Leave SIGTERM to jax.distributed, which makes all processes of a job agree on the step to stop at. To be
        called before the processes join: jax listens from then on, and this handler would take its place."""
        self._together = True
        signal.signal(signal.SIGTERM, self._before.pop(signal.SIGTERM))

    def _note(self, number: int, frame: types.FrameType | None) -> None:
        again, self.received = self.received, self.received or number
        if again and number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        elif self._together:
            os.kill(os.getpid(), signal.SIGTERM)  # jax passes it on to the other processes

    def check(self) -> None:
        """Raises Interrupted where a signal has come; to be called between two pieces of work before training."""
        if self.received and not self._together:
            raise Interrupted(self.received, self.state)

    def stop(self, step: int) -> int:
        """The signal to stop for at this step, or 0. Every process of a job hears the same at the same step."""
        if not self._together:
            return self.received
        from jax.experimental import multihost_utils

        if multihost_utils.reached_preemption_sync_point(step):
            return self.received or signal.SIGTERM
        return 0

    def close(self) -> None:
        """Back to what was before."""
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before = {}
