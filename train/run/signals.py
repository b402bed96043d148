"""SIGTERM and Ctrl-C. Needs no jax.

Work that has something to save listens (`Signals`): a signal is noted, and answered between two steps. All else of a
command (imports, compilers, short commands) ends at once, with the same line and exit code (`end_at_once`).
"""

import contextlib
import os
import signal
import threading
import time
import types
from typing import Any, NoReturn

from contexture.data.cancel import CancelToken
from contexture.data.storage import remove_unfinished

STOPPED = "stopped; the same command starts again"
PARTS_KEPT = "stopped; the same command resumes from the parts that are done"
NOTHING_WRITTEN = "stopped, nothing was written; the same command starts again"
# 75 is EX_TEMPFAIL (sysexits.h): a scheduler may start the command again. 130 is the shell's 128 + SIGINT.
EXIT_CODE = {signal.SIGTERM: 75, signal.SIGINT: 130}
NAME = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}


class Interrupted(BaseException):
    """The run was asked to stop, and its work so far is saved. No `except Exception` takes it for a failure."""

    def __init__(self, number: int, state: str) -> None:
        super().__init__(f"{NAME[signal.Signals(number)]}: {state}")
        self.code = EXIT_CODE[signal.Signals(number)]


def end_at_once() -> None:
    """Makes SIGTERM and Ctrl-C end this process wherever no `Signals` listens: one line, exit code 75 or 130, and no
    partial file. For the command line, which owns its process.

    Not by an exception: raised in a callback of jax or in a destructor it is ignored, and the command goes on, or C++
    aborts. Nor by Python's handler alone, which waits until a compiler returns: a thread reads the signals' numbers.
    """
    with contextlib.suppress(OSError):  # there may be no stderr
        _terminal[:] = [os.dup(2)]
    for number in EXIT_CODE:
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup, or a shell's `&` in a script, leaves it
            signal.signal(number, _end)
    # C's handler writes the number of each signal into the pipe at once, also while Python's cannot run.
    pipe, to_pipe = os.pipe()
    os.set_blocking(to_pipe, False)
    signal.set_wakeup_fd(to_pipe, warn_on_full_buffer=False)
    with contextlib.suppress(RuntimeError):  # no thread may be started: the handler will do
        threading.Thread(target=_watch, args=(pipe,), name="signals", daemon=True).start()


_terminal = [2]
"""A duplicate of stderr, made at the start: `plan` redirects stderr to a file while XLA compiles."""
_ending = threading.Lock()
_ender: list[int] = []
"""The thread that ends the process."""


def _watch(pipe: int) -> None:
    while received := os.read(pipe, 1):
        # Someone else listens (`Signals`, a library): the number is theirs to answer.
        if signal.getsignal(received[0]) is _end:
            _end(received[0])


def _end(number: int, frame: types.FrameType | None = None) -> NoReturn:
    if not _ending.acquire(blocking=False) and _ender != [threading.get_ident()]:
        time.sleep(60)  # the other of thread and handler is about to end the process
    # A second signal comes here within the first one's work, and ends that.
    again, _ender[:] = bool(_ender), [threading.get_ident()]
    try:
        # Files under temporary names; a second signal does not wait for their removal.
        if not again:
            remove_unfinished()
        # os.write and os._exit only: print and the interpreter's exit take locks that the broken thread may hold.
        os.write(_terminal[0], f"{NAME[signal.Signals(number)]}: {STOPPED}\n".encode())
    finally:  # also where nothing can be removed, or nobody reads what is said
        os._exit(EXIT_CODE[signal.Signals(number)])


class Signals(CancelToken):
    """Listens for signals from creation to close.

    A signal is only noted: an exception raised anywhere would break into imports and reads. Before training, `check`
    raises it between two pieces of work. While training, `stop` returns it between two steps, and between two batches
    of an evaluation. A Ctrl-C that comes after another signal ends the process at once.
    """

    def __init__(self, state: str = "stopped before training resumed; the same command resumes from there") -> None:
        """state: the end of the message when `check` stops the work, after the signal's name."""
        self.state = state
        self.received = 0
        # Of a job of several processes: how often `stop` was called, and the signal that all have agreed on.
        self._together = False
        self._calls = self._agreed = 0
        self._before: dict[int, Any] = {}
        for number in EXIT_CODE:
            self._before[number] = signal.signal(number, self._note)

    def share(self) -> None:
        """Leaves SIGTERM to jax.distributed, which makes all processes of a job agree on where to stop.

        Must be called right before the work that they do in step: until then a signal to one process ends the job.
        """
        import jax
        from jax._src import distributed

        signal.signal(signal.SIGTERM, self._before.pop(signal.SIGTERM))  # jax's handler takes the place of this one
        jax.config.update("jax_enable_preemption_service", True)
        distributed.global_state.initialize_preemption_sync_manager()
        self._together = True

    def _note(self, number: int, frame: types.FrameType | None) -> None:
        # The first signal decides the exit code.
        again, self.received = self.received, self.received or number
        if again and number == signal.SIGINT:
            _end(number)
        elif self._together:
            os.kill(os.getpid(), signal.SIGTERM)  # jax passes it on to the other processes

    def check(self) -> None:
        """Raises Interrupted if a signal has come; to be called between two pieces of work before training."""
        if self.received and not self._together:
            raise Interrupted(self.received, self.state)

    def stop(self) -> int:
        """Returns the signal to stop for, or 0; the same in all processes of a job, which call this equally often."""
        if not self._together:
            return self.received
        from jax.experimental import multihost_utils

        # jax agrees on a number of calls at which all processes have stopped; hence `equally often`.
        self._calls += 1
        if not self._agreed and multihost_utils.reached_preemption_sync_point(self._calls):
            self._agreed = self.received or signal.SIGTERM
        return self._agreed

    @property
    def while_training(self) -> CancelToken:
        """A token for an evaluation in the middle of training, which asks `stop` between two batches."""
        return _WhileTraining(self)

    def __enter__(self) -> "Signals":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Restores the previous handlers."""
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before = {}


class _WhileTraining(CancelToken):
    def __init__(self, signals: Signals) -> None:
        self.signals = signals

    def check(self) -> None:
        """Raises Interrupted if `stop` returns a signal."""
        if number := self.signals.stop():
            raise Interrupted(number, self.signals.state)
