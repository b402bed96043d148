"""Orbax says each failure many times; here its printers are silenced."""

import functools
import logging
import sys
import threading
import traceback
import warnings
from typing import Any


@functools.cache
def quiet_orbax() -> None:
    """Orbax raises what fails, and prints it too: from its writing threads at once, from coroutines and event loops
    left behind by the hundred, some of them much later. Here it is raised, once, in one line; these printers are
    silenced, for the rest of the process, and no others."""
    thread_hook, unraisable_hook, hook = threading.excepthook, sys.unraisablehook, sys.excepthook

    def of_orbax(value: BaseException | None, trace: Any) -> bool:
        late = "Event loop is closed" in str(value)
        return late or any("orbax" in frame.filename for frame in traceback.extract_tb(trace))

    def of_thread(failed: threading.ExceptHookArgs) -> None:
        if not of_orbax(failed.exc_value, failed.exc_traceback):
            thread_hook(failed)

    def unraisable(failed: Any) -> None:
        if not of_orbax(failed.exc_value, failed.exc_traceback):
            unraisable_hook(failed)

    def raised(kind: Any, value: BaseException, trace: Any) -> None:
        if "Event loop is closed" not in str(value):
            hook(kind, value, trace)

    threading.excepthook, sys.unraisablehook, sys.excepthook = of_thread, unraisable, raised
    for noisy in ("absl", "orbax", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", message="coroutine .* was never awaited", category=RuntimeWarning)
