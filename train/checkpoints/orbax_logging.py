"""Silences Orbax, which prints each failure many times, apart from raising it."""

import contextlib
import functools
import logging
import sys
import threading
import traceback
import types
import warnings
from collections.abc import Iterator
from typing import Any

_LOGGERS = ("absl", "orbax", "asyncio", "gcsfs", "google.auth")


@contextlib.contextmanager
def orbax_silenced() -> Iterator[None]:
    """Silences Orbax's messages about failures, and no others, within the block.

    Orbax raises its failures, and prints them too: from its writing threads at once, and by the hundred from coroutines
    and event loops that are left behind, some of them much later. One line for the error that was raised is enough.
    """
    # Whatever hooks and levels there were come back at the end of the block.
    hooks = threading.excepthook, sys.unraisablehook, sys.excepthook
    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    # _silence adds a filter for warnings, which ends with this block.
    with warnings.catch_warnings():
        _silence()
        try:
            yield
        finally:
            threading.excepthook, sys.unraisablehook, sys.excepthook = hooks
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)


@functools.cache
def silence_orbax() -> None:
    """Silences Orbax for the rest of the process: for the command line and for training, where its threads go on
    writing after the call that started them."""
    _silence()


def _silence() -> None:
    thread_hook, unraisable_hook, hook = threading.excepthook, sys.unraisablehook, sys.excepthook

    # Told by the files of the traceback; messages of closed event loops come without one.
    def of_orbax(value: BaseException | None, trace: types.TracebackType | None) -> bool:
        late = "Event loop is closed" in str(value)
        return late or any("orbax" in frame.filename for frame in traceback.extract_tb(trace))

    def of_thread(failed: threading.ExceptHookArgs) -> None:
        if not of_orbax(failed.exc_value, failed.exc_traceback):
            thread_hook(failed)

    def unraisable(failed: Any) -> None:
        if not of_orbax(failed.exc_value, failed.exc_traceback):
            unraisable_hook(failed)

    # The hook of the main thread: the error that Orbax raised there is reported by the command itself.
    def raised(kind: type[BaseException], value: BaseException, trace: types.TracebackType | None) -> None:
        if "Event loop is closed" not in str(value):
            hook(kind, value, trace)

    # Errors of other origin go on to the hook from before.
    threading.excepthook, sys.unraisablehook, sys.excepthook = of_thread, unraisable, raised
    # Failures are logged as errors; a CRITICAL message still passes.
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", message="coroutine .* was never awaited", category=RuntimeWarning)
