"""Files that a user names, opened safely: plain files only, decompressed as they are read, and what their names say."""

import bz2
import gzip
import io
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from contexture.data import mirror
from contexture.data.errors import DataError, FileChanged
from contexture.data.storage import check_no_address

Seen: TypeAlias = Callable[[bytes], object]
"""Called with all bytes of a file as they are read: a digest's update, a counter."""
Span: TypeAlias = tuple[int, int | None]
"""The bytes of a file that are read: from the first on, to before the second (None: the file's end)."""
WHOLE: Span = (0, None)

COMPRESSED = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}
"""Compressed files that are read, by the last suffix of their names."""
COLUMNAR = (".parquet", ".arrow", ".feather")
"""Binary tables, which `data.text.columnar` reads."""
IN_FOLDERS = (".txt", ".jsonl", *COLUMNAR)
"""Files that are read where a folder is given. *.json is not among them: such files often hold no data."""
_ARCHIVES = (".zip", ".tar", ".tgz", ".tbz2", ".txz", ".7z", ".rar", ".lz4", ".lzma", ".z", ".br", ".sz")
# bzip2 by what follows its first four bytes, which are plain letters and a digit (BZh9).
_MAGIC = (
    (0, b"\x1f\x8b", ".gz"),
    (4, b"1AY&SY", ".bz2"),
    (0, b"\xfd7zXZ\x00", ".xz"),
    (0, b"\x28\xb5\x2f\xfd", ".zst"),
    (0, b"PK\x03\x04", ".zip"),
    (257, b"ustar\x00", ".tar"),
    (257, b"ustar  ", ".tar"),
    (0, b"7z\xbc\xaf\x27\x1c", ".7z"),
    (0, b"Rar!\x1a", ".rar"),
    (0, b"PAR1", ".parquet"),
    (0, b"ARROW1", ".arrow"),
    (0, b"\xff\xff\xff\xff", ".arrow"),
    (0, b"FEA1", ".feather"),
)
"""Place, bytes and suffix of files that are no text."""
LONGEST_FILE = 1 << 28
"""Most bytes of a file that is read whole."""
_HEAD = 512
_PIECE = 1 << 16
"""Bytes that are read from disk at once."""
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_plain(path: str | Path) -> BufferedReader:
    """Opens a file for reading; links are followed.

    Raises: DataError for anything but a plain file, and for an address of no bucket; OSError where nothing exists, or
    it may not be read.
    """
    check_no_address(path)
    mirror.fetched(path)
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


def state_of(file: BufferedReader) -> tuple[int, int]:
    """Returns the size of an open file, and when it was written to (ns)."""
    # Of the open file: its path may lead to another one by now.
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


def check_unchanged(path: str | Path, file: BufferedReader, at_opening: tuple[int, int]) -> None:
    """Raises: FileChanged where an open file has another state than in the beginning."""
    if state_of(file) != at_opening:
        raise FileChanged(path)


def read_plain(path: str | Path) -> bytes:
    """Returns all bytes of a file. Raises: as `open_plain`."""
    with open_plain(path) as file:
        return file.read()


def read_stream(path: str | Path, most: int = LONGEST_FILE) -> bytes:
    """Returns the content of a file, decompressed by its last suffix.

    Raises: as `open_stream`; DataError for more than `most` bytes.
    """
    with open_stream(path) as file:
        # In pieces, since the length of what is compressed is not known beforehand.
        content = bytearray()
        while piece := file.read(_PIECE):
            content += piece
            if len(content) > most:
                raise DataError(f"{path}: more than {most:,} bytes, which are read at once; give several files")
    return bytes(content)


def open_stream(path: str | Path, seen: Seen = len, span: Span = WHOLE) -> BufferedReader:
    """Opens a file by its last suffix: the content of *.gz, *.bz2, *.xz and *.zst is decompressed as it is read, in
    bounded memory. Every byte on disk goes through `seen`. span: the bytes to read, of a file that is not compressed.

    Raises: as `open_plain`; when it is read, DataError for an archive that is damaged, cut off, or not what its name
    says.
    """
    return BufferedReader(_Stream(path, seen, span), _PIECE)


def is_compressed(path: str | Path) -> bool:
    return os.path.splitext(path)[1].lower() in COMPRESSED


def inner_suffix(path: str | Path) -> str:
    """Returns the suffix that says what a file holds, in lower case: ".jsonl" of "a.JSONL" and of "a.jsonl.gz"."""
    stem, suffix = os.path.splitext(path)
    return os.path.splitext(stem)[1].lower() if suffix.lower() in COMPRESSED else suffix.lower()


def check_plain(path: str | Path) -> None:
    """Raises: DataError for what is neither a plain file nor a folder, and for an address of no bucket. For what a
    library opens, and before a path is said to be missing."""
    check_no_address(path)
    mirror.fetched(path)
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise _not_plain(path, os.stat(path).st_mode)


def check_content(path: str | Path) -> None:
    """Raises: DataError where a file is an archive of files, or its first bytes are not what its name says: compressed
    data, a binary table."""
    # First what the name says, then what the first bytes say.
    packed, suffix = is_compressed(path), inner_suffix(path)
    # By name alone: such a file is not even opened.
    if suffix in _ARCHIVES:
        raise DataError(f"{path}: an archive (*{suffix}), which is not read; unpack it, and name the files in it")
    if packed and suffix in COLUMNAR:
        raise DataError(f"{path}: a compressed *{suffix}; decompress it, since such a file is compressed within")
    with open_stream(path) as file:  # says what is wrong with compressed data
        head = file.read(_HEAD)
    if suffix not in COLUMNAR and (encoding := _other_encoding(head)):
        raise DataError(
            f"{path}: {encoding} by its first bytes, and text is UTF-8; save it so, or: iconv -f {encoding} -t UTF-8 "
            f"{path} > NEW"
        )
    # The suffix that the content should have, by its first bytes.
    holds = next((kind for at, magic, kind in _MAGIC if head[at : at + len(magic)] == magic), "")
    if suffix in COLUMNAR:
        # The second version of Feather is an Arrow file.
        if head and not (holds == suffix or (holds == ".arrow" and suffix == ".feather")):
            raise DataError(f"{path}: no *{suffix} file by its first bytes; write it again, or name it as what it is")
    elif holds in COMPRESSED and packed:
        raise DataError(f"{path}: compressed twice, with {COMPRESSED[holds]} within; decompress it once")
    elif holds in COMPRESSED:
        raise DataError(f"{path}: compressed with {COMPRESSED[holds]}, which its name does not say; name it *{holds}")
    elif holds in COLUMNAR:
        raise DataError(f"{path}: a binary table, which its name does not say; name it *{holds}")
    elif holds:
        raise DataError(f"{path}: an archive (*{holds}), which is not read; unpack it, and name the files in it")


def _other_encoding(head: bytes) -> str:
    """Returns the name of an encoding with two or four bytes a character, by its mark or by zeros in every other byte
    of Latin text; "" for another."""
    # UTF-32's first: its mark begins with UTF-16's.
    marks = {b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
    # By a mark at the beginning ...
    if named := next((name for mark, name in marks.items() if head.startswith(mark)), ""):
        return named
    # ... or without one, by the zeros of Latin text.
    half = len(head) // 2
    # A Latin letter is its byte and a zero: the zero comes first in big-endian text, second in little-endian.
    even, odd = head[: 2 * half : 2].count(0), head[1 : 2 * half : 2].count(0)
    # One half nearly all zeros, the other nearly none.
    if half < 2 or max(even, odd) < 0.9 * half or min(even, odd) > 0.1 * half:
        return ""
    return "UTF-16BE" if even > odd else "UTF-16LE"


class _Decoder(Protocol):
    """bz2.BZ2Decompressor, lzma.LZMADecompressor."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Members:
    """The content of a file of *.bz2 or *.xz streams, one after the other.

    Python's own readers end in silence at a second stream that is damaged; here it is an error.
    """

    def __init__(self, file: io.BufferedIOBase, new: Callable[[], _Decoder]) -> None:
        self._file, self._new = file, new
        self._decoder = new()
        self._first = self._fresh = True
        """Whether this is the first stream, and whether nothing of it was read yet."""

    def read(self, size: int) -> bytes:
        data = b""
        while True:
            # A stream has ended: what its decoder did not use begins the next one.
            if self._decoder.eof:
                data, self._decoder = self._decoder.unused_data, self._new()
                self._first, self._fresh = False, True
            if not data and self._decoder.needs_input:
                data = self._file.read(_PIECE)
                # Between two streams the file may end; within one it is cut off.
                if not data and self._fresh and not self._first:
                    return b""
                if not data:
                    raise EOFError
            # xz allows zeros after a stream.
            if self._fresh and not self._first and not (data := data.lstrip(b"\0")):
                continue
            self._fresh = False
            content = self._decoder.decompress(data, size)
            data = b""
            if content:
                return content


class _Counted(io.RawIOBase):
    """A file whose bytes go through `seen` as they are read.

    At its end it raises FileChanged if the file was written to meanwhile: otherwise the rest of a file that was cut
    short would be taken for the whole.
    """

    def __init__(self, path: str | Path, seen: Seen, span: Span) -> None:
        self._path, self._file, self._seen = path, open_plain(path), seen
        self._begun = state_of(self._file)
        self._file.seek(span[0])
        # To the end, which a read may reach only once.
        self._left = sys.maxsize if span[1] is None else span[1] - span[0]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(min(len(buffer), self._left))
        buffer[: len(data)] = data
        self._left -= len(data)
        if data:
            self._seen(data)
        # The end: now the file must be as it was when it was opened.
        elif len(buffer):
            check_unchanged(self._path, self._file, self._begun)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


class _Stream(io.RawIOBase):
    """The content of a file, decompressed by its last suffix."""

    def __init__(self, path: str | Path, seen: Seen, span: Span) -> None:
        self._path = path
        # Bytes are counted as they lie on disk, before they are decompressed.
        self._raw = BufferedReader(_Counted(path, seen, span), _PIECE)
        self._kind = COMPRESSED.get(os.path.splitext(path)[1].lower(), "")
        self._read: Callable[[int], bytes] | None = None
        self._done = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            # Made at the first read, inside the `try`, so that an archive broken
            # at its beginning is reported like any other.
            self._read = self._read or self._reader()
            data = self._read(len(buffer))
        # The libraries' many errors become one that names the file.
        except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
            # An error of the disk has a number, and is no fault of the archive.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            reason = "" if isinstance(error, EOFError) or not str(error) else f" ({' '.join(str(error).split())})"
            raise DataError(
                f"{self._path}: the {self._kind} data are damaged or cut off after {self._done:,} bytes of "
                f"content{reason}; copy the file again, or compress it again"
            ) from None
        self._done += len(data)
        buffer[: len(data)] = data
        return len(data)

    def _reader(self) -> Callable[[int], bytes]:
        match self._kind:
            case "gzip":
                return gzip.GzipFile(fileobj=self._raw, mode="rb").read1
            case "bzip2":
                return _Members(self._raw, bz2.BZ2Decompressor).read
            case "xz":
                return _Members(self._raw, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ)).read
            case "zstd":
                # Python has no zstd of its own before 3.14.
                import pyarrow  # here, since it takes half a second

                return pyarrow.CompressedInputStream(pyarrow.PythonFile(self._raw, mode="r"), "zstd").read
        return self._raw.read1

    def close(self) -> None:
        self._raw.close()
        super().close()


def _not_plain(path: str | Path, mode: int) -> DataError:
    what = next((name for holds, name in _KINDS if holds(mode)), "no plain file")
    return DataError(f"{path}: {what}, not a plain file; give a file on disk")
