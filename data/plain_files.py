"""Files that a user names, opened safely: plain files only, and text that is text."""

import os
import stat
from io import BufferedReader
from pathlib import Path

from contexture.data.errors import DataError

_PACKED = (
    (".gz", b"\x1f\x8b", "compressed with gzip", "gunzip -k {}"),
    (".bz2", b"BZh", "compressed with bzip2", "bunzip2 -k {}"),
    (".xz", b"\xfd7zXZ\x00", "compressed with xz", "unxz -k {}"),
    (".zst", b"\x28\xb5\x2f\xfd", "compressed with zstd", "unzstd {}"),
    (".zip", b"PK\x03\x04", "a zip archive", "unzip {}"),
    (".parquet", b"PAR1", "a Parquet table", "python -c \"import pandas; pandas.read_parquet('{}').to_json('{}.jsonl', "
     "orient='records', lines=True)\""),
    (".arrow", b"ARROW1", "an Arrow table", "python -c \"import pandas; pandas.read_feather('{}').to_json('{}.jsonl', "
     "orient='records', lines=True)\""),
)  # fmt: skip
"""Suffix, first bytes, description, and the command that makes text of it."""
_KINDS = (
    (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"),
)  # fmt: skip


def open_plain(path: str | Path) -> BufferedReader:
    """Opens a file for reading; links are followed.

    Raises: DataError for anything but a plain file; OSError where nothing exists, or it may not be read.
    """
    # O_NONBLOCK: opening a pipe that nobody writes to would wait for ever. The kind is then asked of the open file, so
    # that no other one can take its place in between.
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        mode = os.fstat(number).st_mode
        if not stat.S_ISREG(mode):
            raise _not_plain(path, mode)
        return os.fdopen(number, "rb")
    except BaseException:
        os.close(number)
        raise


def read_plain(path: str | Path) -> bytes:
    """Returns all bytes of a file. Raises: as `open_plain`."""
    with open_plain(path) as file:
        return file.read()


def check_plain(path: str | Path) -> None:
    """Raises: DataError for what is neither a plain file nor a folder. For files that a library opens."""
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise _not_plain(path, os.stat(path).st_mode)


def check_not_packed(path: str | Path) -> None:
    """Raises: DataError, with the command that unpacks it, for a compressed file or a binary table, known by its first
    bytes or by its name."""
    with open_plain(path) as file:
        start = file.read(8)
    suffix = os.path.splitext(path)[1].lower()
    for ending, magic, what, command in _PACKED:
        if start.startswith(magic) or suffix == ending:
            raise DataError(f"{path}: {what}, not text; make text of it first: {command.replace('{}', str(path))}")


def _not_plain(path: str | Path, mode: int) -> DataError:
    what = next((name for holds, name in _KINDS if holds(mode)), "no plain file")
    return DataError(f"{path}: {what}, not a plain file; give a file on disk")
