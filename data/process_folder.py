"""A temporary folder of this process alone, which is removed when it ends, or by another process if it was killed."""

import atexit
import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

_PREFIX = "contexture-mirror-"
_made: list[Path] = []


def process_folder() -> Path:
    """Makes a temporary folder of this process, and removes those of processes that are gone."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        # Whose lock can be had, nobody uses any more.
        if (number := _locked(left)) is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(number)
    folder = Path(os.path.realpath(tempfile.mkdtemp(prefix=_PREFIX)))
    # Held as long as this process lives: its descriptor is never closed.
    _locked(folder)
    atexit.register(_remove, folder, os.getpid())
    _made.append(folder)
    return folder


def end_without_waiting(code: int) -> NoReturn:
    """Ends this process at once, also where threads wait for what never comes, and leaves no temporary folder."""
    for stream in (sys.stdout, sys.stderr):
        # Nobody may be reading any more.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    for folder in _made:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(code)


def _remove(folder: Path, owner: int) -> None:
    # Not in a forked child, which has inherited the call.
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _locked(folder: Path) -> int | None:
    """Locks a folder and returns its descriptor; None where another process has it."""
    # Not by process numbers, which mean nothing between containers. The lock ends with its process, however it ends.
    number = None
    try:
        number = os.open(folder, os.O_RDONLY)
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if number is not None:
            os.close(number)
        return None
    return number
