"""What jax's native code does when a job fails (it writes a stack trace and aborts the process), made one line."""

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
"""What native code has written since the coordination service failed."""
_handlers: list[Any] = []
"""Kept, since C code calls them."""


def nobody_came(count: str | None, address: str, minutes: float) -> str:
    """One line for a job that did not come together, from what jax writes before it aborts."""
    time.sleep(0.5)  # that is on its way through the filter
    written = b"".join(_held).decode("utf-8", "replace")
    missing = re.findall(r"^\d+$", written.partition("timed out task names:")[2].partition("RPC:")[0], re.MULTILINE)
    missing = sorted(set(missing), key=int)
    where, limit = address or "its address", f"mesh.startup-minutes={minutes:g}"
    if missing:
        return f"process {', '.join(missing)} of {count} did not join at {where} within {limit}; see what it printed"
    return f"no coordinator answered at {where} within {limit}; see that process 0 runs there and the port is open"


@contextlib.contextmanager
def register_within(seconds: int) -> Iterator[None]:
    """Has process 0 wait so long for the others, and name those that do not come: jax gives this no name of its own."""
    library = distributed._jax  # pyright: ignore[reportPrivateImportUsage]

    class Patient:
        def __getattr__(self, name: str) -> Any:
            found = getattr(library, name)
            limited = name == "get_distributed_runtime_service"
            return functools.partial(found, cluster_register_timeout=seconds) if limited else found

    distributed._jax = Patient()  # pyright: ignore[reportPrivateImportUsage,reportAttributeAccessIssue]
    try:
        yield
    finally:
        distributed._jax = library  # pyright: ignore[reportPrivateImportUsage]


def divert_native_errors() -> None:
    """What native code writes to stderr passes through a filter, which holds back what jax's coordination service
    writes once it fails (a stack trace, just before it aborts the process); Python's own stderr goes around it."""
    sys.stderr.flush()
    terminal = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    sys.stderr = os.fdopen(terminal, "w", encoding=sys.stderr.encoding, errors="replace", buffering=1)

    def forward() -> None:
        held = False
        with os.fdopen(reading, "rb") as lines:
            for line in lines:
                held = held or b"coordination_service" in line or b"JAX distributed service detected" in line
                _held.append(line) if held else os.write(terminal, line)

    threading.Thread(target=forward, name="contexture-native-stderr", daemon=True).start()


def answer_aborts(end: Callable[[], None]) -> None:
    """Calls `end`, which ends the process with a line, where jax aborts it (SIGABRT, mostly raised by a thread of its
    own): when process 0 dies or does not come."""
    _handlers.append(ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: end()))
    ctypes.CDLL(None).signal(int(signal.SIGABRT), _handlers[-1])
