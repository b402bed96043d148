"""A limit on how long a run may do nothing: a hang costs as much as a training."""

import contextlib
import faulthandler
import math
import os
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

from contexture.data.cancel import CancelToken
from contexture.data.mirror import push, with_addresses


def stalled_file(process: int) -> str:
    """Returns the file of a run's folder with the place of each thread of a process that was ended: stalled.txt, or
    stalled.N.txt of process N > 0."""
    return f"stalled.{process}.txt" if process else "stalled.txt"


class Watchdog:
    """Ends the process when for too long no step, batch of an evaluation or save ends in it.

    A process may hang in a collective, in a driver or in a store, where no exception reaches it, and jax may hold
    SIGTERM. So a thread looks at the clock, writes where every thread is, and ends the process by `os._exit`.
    """

    def __init__(self, minutes: float, file: Path, state: str = "") -> None:
        """Watches nothing until it is entered.

        Args:
            minutes: the limit; 0 is none.
            file: receives the places of the threads.
            state: the end of the line, where the run can go on from. It is given beforehand: what hangs may be the disk
                that knows it.
        """
        self.limit, self.file, self.state = minutes * 60 or math.inf, file, state
        self._moved = time.monotonic()
        self._left = threading.Event()

    def moved(self) -> None:
        """Notes that a piece of work has ended."""
        self._moved = time.monotonic()

    def moves(self, token: CancelToken) -> CancelToken:
        """Returns a token that also notes a piece of work at each check."""
        return _Noting(token, self)

    def __enter__(self) -> "Watchdog":
        self.moved()
        if self.limit < math.inf:
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._left.set()

    def _watch(self) -> None:
        # Looked at ten times within the limit, or each second of a long one.
        interval = min(self.limit / 10, 1.0)
        silent, before = 0.0, time.monotonic()
        while not self._left.wait(interval):
            now = time.monotonic()
            # A process that was suspended for hours did not hang in them: at most two looks' time counts.
            silent = min(silent + min(now - before, 2 * interval), now - self._moved)
            before = now
            if silent > self.limit:
                self._end(silent)

    def _end(self, silent: float) -> None:
        # The disk may be what hangs: the line comes first, and the process ends whatever becomes of the file.
        threading.Timer(10.0, os._exit, (1,)).start()
        with contextlib.suppress(OSError):
            print(
                f"Stalled: no step, evaluation or save has ended for {silent:.0f} s (mesh.stall-minutes="
                f"{self.limit / 60:g}); where each thread is: {with_addresses(str(self.file))}; {self.state}",
                file=sys.stderr,
                flush=True,
            )
        with contextlib.suppress(OSError), self.file.open("w") as file:
            faulthandler.dump_traceback(file, all_threads=True)
        # To a bucket too, as far as it answers before the timer ends the process.
        with contextlib.suppress(Exception):
            push(self.file)
        os._exit(1)


class _Noting(CancelToken):
    def __init__(self, token: CancelToken, watchdog: Watchdog) -> None:
        self.token, self.watchdog = token, watchdog

    def check(self) -> None:
        """Raises as the token."""
        self.watchdog.moved()
        self.token.check()
