"""Replaces the stack trace that jax's native code writes before it aborts a process of a failed job by one line."""

import contextlib
import ctypes
import functools
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from jax._src import distributed

_held: list[bytes] = []
"""Lines that native code has written since the coordination service failed."""
_handlers: list[Any] = []
"""Referenced here, so that they are not collected: C code calls them."""


def nobody_came(count: str | None, address: str, minutes: float) -> str:
    """Returns the line for a job whose processes did not all join, from the text that jax writes before it aborts."""
    time.sleep(0.5)  # the text is still on its way through the filter's pipe
    written = b"".join(_held).decode("utf-8", "replace")
    # The coordinator lists the numbers of the missing processes, a line each.
    missing = re.findall(r"^\d+$", written.partition("timed out task names:")[2].partition("RPC:")[0], re.MULTILINE)
    missing = sorted(set(missing), key=int)
    where, limit = address or "its address", f"mesh.startup-minutes={minutes:g}"
    # Process 0 knows who is missing; the others only know that nobody answered.
    if missing:
        return f"process {', '.join(missing)} of {count} did not join at {where} within {limit}; see what it printed"
    return f"no coordinator answered at {where} within {limit}; see that process 0 runs there and the port is open"


@contextlib.contextmanager
def register_within(seconds: int) -> Iterator[None]:
    """Sets how long process 0 waits for the others to join, before it names those that are missing.

    jax.distributed.initialize has no argument for this. So within the block its native library is replaced by a proxy
    that adds the argument to the one call that takes it.
    """
    library = distributed._jax  # pyright: ignore[reportPrivateImportUsage]

    class Patient:
        def __getattr__(self, name: str) -> Any:
            attribute = getattr(library, name)
            limited = name == "get_distributed_runtime_service"
            return functools.partial(attribute, cluster_register_timeout=seconds) if limited else attribute

    distributed._jax = Patient()  # pyright: ignore[reportPrivateImportUsage,reportAttributeAccessIssue]
    try:
        yield
    finally:
        distributed._jax = library  # pyright: ignore[reportPrivateImportUsage]


def divert_native_errors() -> None:
    """Filters the stderr of native code: text of a failing coordination service (a stack trace) is held back.

    Native code writes to file descriptor 2, which becomes a pipe to a thread. Python's sys.stderr gets a copy of the
    old descriptor, and is not filtered.
    """
    # What Python has buffered goes out first, in order.
    sys.stderr.flush()
    # Descriptor 2 → pipe → thread → the old stderr; Python's sys.stderr → the old stderr directly.
    terminal = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    sys.stderr = os.fdopen(terminal, "w", encoding=sys.stderr.encoding, errors="replace", buffering=1)

    def forward() -> None:
        # From the first such line on: the abort follows, and all further text belongs to it.
        held = False
        with os.fdopen(reading, "rb") as lines:
            for line in lines:
                held = held or b"coordination_service" in line or b"JAX distributed service detected" in line
                _held.append(line) if held else os.write(terminal, line)

    # A daemon: it ends with the process, and reads until then.
    threading.Thread(target=forward, name="contexture-native-stderr", daemon=True).start()


def answer_aborts(end: Callable[[], None]) -> None:
    """Calls `end`, which ends the process with one line, when jax aborts it: process 0 died or did not come.

    The handler is set by C's signal(). One of Python's would only set a flag, for the main thread to look at later; but
    SIGABRT mostly comes from a thread of jax, and the process ends when C's handler returns.
    """
    # `end` leaves by os._exit and never returns, so the abort is never completed.
    _handlers.append(ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: end()))
    ctypes.CDLL(None).signal(int(signal.SIGABRT), _handlers[-1])
