"""Files of numbers: written with their digests, read by position, and compared with their digests."""

import hashlib
import json
import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Generic, Protocol, TypeAlias, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError
from contexture.data.plain_files import open_plain

# Numbers, of 8 bytes each.
_BUFFER = 1 << 16


class FileEntry(TypedDict):
    """A file's entry in an index.json."""

    size: int
    sha256: str


class HashingWriter:
    """A file being written, and its size and digest so far. It can be read while it is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Readable too: parts are read back while it grows.
        self.file: BinaryIO = path.open("w+b")
        self._digest, self._size = hashlib.sha256(), 0

    def write(self, raw: bytes) -> None:
        self._digest.update(raw)
        self._size += len(raw)
        self.file.write(raw)

    def entry(self) -> FileEntry:
        """Returns the file's entry in an index.json."""
        return {"size": self._size, "sha256": self._digest.hexdigest()}


def close_all(files: Iterable[HashingWriter]) -> None:
    """Closes every file, also where closing one fails (a full disk); raises that error at the end."""
    with ExitStack() as stack:
        for out in files:
            stack.callback(out.file.close)


class Int64Writer(HashingWriter):
    """Whole numbers written to a file through a small buffer: a digest and a write for each number would be slow."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        # 8 bytes a number, where a list would take several times as many.
        self.buffer = array("q")

    def add(self, *numbers: int) -> None:
        self.buffer.extend(numbers)
        if len(self.buffer) >= _BUFFER:
            self.flush()

    def extend(self, numbers: "I64") -> None:
        """Adds all numbers of an array, i64 [n]."""
        # As bytes: not a single number of them becomes an object.
        self.buffer.frombytes(numbers.astype(np.int64, copy=False).tobytes())
        if len(self.buffer) >= _BUFFER:
            self.flush()

    def flush(self) -> None:
        """Writes what is buffered, so that it can be read back."""
        # Little-endian, whatever this machine is.
        self.write(np.frombuffer(self.buffer, np.int64).astype("<i8").tobytes())
        self.buffer = array("q")
        # Out of Python's buffer too, since readers go to the file itself (pread).
        self.file.flush()


I64 = NDArray[np.int64]
Item = TypeVar("Item", bound=np.generic, covariant=True)
Kind: TypeAlias = "type | Mapping[str, Kind] | Sequence[Kind]"
"""An expected type of JSON, see `misfit`."""


class File:
    """Bytes of a file by their place; closed when it is garbage-collected.

    pread has no position of its own, so any number of threads may read at once.
    """

    def __init__(self, path: Path) -> None:
        self._number = os.open(path, os.O_RDONLY)

    def read(self, count: int, at: int) -> bytes:
        return os.pread(self._number, count, at)

    def __del__(self) -> None:
        # Opening may have failed, before there was a descriptor.
        if hasattr(self, "_number"):
            os.close(self._number)


def joined(starts: I64, lengths: I64) -> tuple[I64, I64]:
    """Joins spans that touch, so that they are one read: starts 0 3 9, lengths 3 2 1 → starts 0 9, lengths 5 1."""
    # Nothing to join, and below there must be a first span.
    if len(starts) < 2:
        return starts, lengths
    # A span begins anew where it is not where the one before it ended.
    apart = np.flatnonzero(np.append(True, starts[1:] != starts[:-1] + lengths[:-1]))
    return starts[apart], np.add.reduceat(lengths, apart)


class Bytes(Protocol):
    """Bytes by their place, wherever they lie."""

    def read(self, count: int, at: int) -> bytes: ...


class Memory:
    """Bytes of an array by their place, read like a File's."""

    def __init__(self, array: NDArray[np.generic]) -> None:
        # In C order, as in a file, whatever strides the array has.
        self._bytes = array.tobytes()

    def read(self, count: int, at: int) -> bytes:
        return self._bytes[at : at + count]


@dataclass(frozen=True)
class Column(Generic[Item]):
    """Items of a dtype by their place."""

    bytes: Bytes
    dtype: np.dtype[Item]

    def read(self, starts: I64, lengths: I64) -> NDArray[Item]:
        """Spans joined: starts i64 [n], lengths i64 [n] → [sum of lengths]."""
        # Examples that lie side by side are one read: evaluation reads a batch at once.
        starts, lengths = joined(starts, lengths)
        size = self.dtype.itemsize
        # As Python's numbers, which pread takes.
        spans = zip((lengths * size).tolist(), (starts * size).tolist(), strict=True)
        # One array of all spans; bytes are never converted.
        return np.frombuffer(b"".join(self.bytes.read(count, at) for count, at in spans), self.dtype)


def check_bytes(file: Path, sha256: str, mend: str, cancel: CancelToken = NEVER) -> None:
    """Raises: DataError where a file's bytes are not those that were written; `mend` ends its message. `cancel` may
    raise to stop the work."""
    digest = hashlib.sha256()
    try:
        with open_plain(file) as opened:
            # In pieces: bounded memory, and `cancel` is asked often.
            while block := opened.read(1 << 22):
                digest.update(block)
                cancel.check()
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}); {mend}") from None
    if digest.hexdigest() != sha256:
        raise DataError(f"{file}: damaged, not the bytes that were written (their sha256 differs); {mend}")


def fingerprint_of(index: Mapping[str, object]) -> str:
    """Returns the sha256 (hex) over all of an index but its fingerprint."""
    # Keys sorted, no white space of its own: the same facts give the same bytes.
    content = {key: value for key, value in index.items() if key != "fingerprint"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def misfit(value: object, kind: Kind, at: str = "") -> str:
    """Returns the first place in JSON that is missing or has another type ("splits.train.tokens"), or "".

    Args:
        value: what was read.
        kind: what is expected: a type (int: not negative), {key: kind} for an object with at least these keys, or
            [kind] for a list of any length.
        at: the place of `value` in the whole.
    """
    if isinstance(kind, Mapping):
        if not isinstance(value, dict):
            return at.removesuffix(".")
        # A missing key reads as None, which is of no expected kind.
        places = [(value.get(key), inner, f"{at}{key}.") for key, inner in kind.items()]
    elif isinstance(kind, Sequence):
        if not isinstance(value, list):
            return at.removesuffix(".")
        places = [(inner, kind[0], f"{at}{number}.") for number, inner in enumerate(value)]
    else:
        # type() and not isinstance: True is no number here.
        fits = type(value) is kind and not (isinstance(value, int) and value < 0)
        return "" if fits else at.removesuffix(".")
    return next((wrong for place in places if (wrong := misfit(*place))), "")
