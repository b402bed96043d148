"""Files being written, and the digests of what was written."""

import hashlib
from array import array
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

_BUFFER = 1 << 16


class Out:
    """A file being written, and the digest of what was written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: BinaryIO = path.open("w+b")
        self._digest, self._size = hashlib.sha256(), 0

    def write(self, raw: bytes) -> None:
        self._digest.update(raw)
        self._size += len(raw)
        self.file.write(raw)

    def entry(self) -> dict[str, Any]:
        return {"size": self._size, "sha256": self._digest.hexdigest()}


def close_all(files: Iterable[Out]) -> None:
    """Closes every file, also where one cannot be written to its end (a full disk), and raises that then."""
    with ExitStack() as stack:
        for out in files:
            stack.callback(out.file.close)


class Rows(Out):
    """Numbers written to a file through a small buffer."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.buffer = array("q")

    def add(self, *numbers: int) -> None:
        self.buffer.extend(numbers)
        if len(self.buffer) >= _BUFFER:
            self.flush()

    def flush(self) -> None:
        self.write(np.frombuffer(self.buffer, np.int64).astype("<i8").tobytes())
        self.buffer = array("q")
        self.file.flush()
