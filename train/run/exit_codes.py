"""The end of a command: the line that an error shows to the user, and the exit code that scripts rely on."""

import resource

from contexture.data.errors import DataError, FileChanged
from contexture.train.errors import CheckpointError, ConfigError, Diverged, ProcessLost
from contexture.train.run.signals import Interrupted


def exit_of(error: BaseException) -> tuple[int, str]:
    """Returns (exit code, the line): 1 failed (disk, numbers, checkpoint, another process), 2 wrong options or files of
    the user's, 75 saved on SIGTERM, 130 on Ctrl-C."""
    named = (ConfigError, DataError, FileChanged, CheckpointError, Diverged, ProcessLost)
    # A subclass is named as the public error that it is: users look that one up.
    kind = next((kind.__name__ for kind in named if isinstance(error, kind)), type(error).__name__)
    if isinstance(error, Interrupted):
        return error.code, str(error)
    if isinstance(error, KeyboardInterrupt):
        return 130, "Ctrl-C"
    # The user can mend it: 2, as argparse and shells have it for wrong usage.
    if isinstance(error, ConfigError | DataError):
        return 2, f"{kind}: {error}"
    if isinstance(error, CheckpointError | Diverged | FileChanged | ProcessLost):
        return 1, f"{kind}: {error}"
    # Memory of the host, before OSError: ENOMEM is one.
    if _out_of_memory(error):
        mend = "this process has too little memory; lower --data.batch, or raise its limit (ulimit -v)"
        return 1, f"MemoryError: {error}" if "ulimit" in str(error) else f"{kind}: {mend}"
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return 1, f"{kind}: {where}{error.strerror or error}"
    # Memory of the device: XLA raises an XlaRuntimeError with this status in its text.
    if "RESOURCE_EXHAUSTED" in str(error):
        mend = "lower --data.batch, or raise --optim.accumulate or --mesh.fsdp"
        return 1, f"{kind}: the device has too little memory; {mend}"
    return 1, f"{kind}: unexpected error: {error}; rerun with --debug for a traceback"


def _out_of_memory(error: BaseException) -> bool:
    """Returns whether the host had too little memory, by the messages of Python, of its loader, or of C++.

    If the address space is limited, an import that failed counts too.
    """
    text = str(error)
    words = ("Cannot allocate memory", "cannot allocate memory", "failed to map segment", "bad_alloc", "new thread")
    # Libraries report a failed mapping of a module as SystemError or ImportError of any text.
    limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    return (
        isinstance(error, MemoryError)
        or any(word in text for word in words)
        or (limited and isinstance(error, SystemError | ImportError))
    )
