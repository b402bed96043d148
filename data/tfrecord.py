"""TFRecord files: records of bytes, one after the other, each with check sums; compressed too, as TensorFlow does it.

u64      the length of the record
u32      masked CRC-32C of these eight bytes
length   the record
u32      masked CRC-32C of the record
"""

import io
import struct
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

import google_crc32c

from contexture.data.errors import DataError
from contexture.data.plain_files import Seen, open_plain, open_stream

LONGEST = 1 << 26
"""Most bytes of a record that is read."""
_HEADER = 12
_PIECE = 1 << 16
# gzip, and the four usual first bytes of zlib.
_COMPRESSED = (b"\x1f\x8b", b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
_MEND = "copy the file again, or write it again"


def masked_crc32c(content: bytes) -> int:
    """Returns the CRC-32C of bytes in the masked form that TensorFlow stores, since CRCs of data that contains CRCs are
    weak."""
    crc = google_crc32c.value(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def write_record(file: IO[bytes], record: bytes) -> None:
    """Appends a record to an open file."""
    # The length has a check sum of its own: a flipped bit there would lead to a wrong place in the file.
    length = struct.pack("<Q", len(record))
    file.write(length + struct.pack("<I", masked_crc32c(length)))
    file.write(record + struct.pack("<I", masked_crc32c(record)))


def begins_as_records(path: Path) -> bool:
    """Returns whether a file's first bytes are the header of a record, decompressed where they are compressed."""
    try:
        with open_plain(path) as file:
            # More than a header: compressed data need some bytes before they give any.
            head = file.read(_PIECE)
            # What follows the first piece does not matter, nor how the compressed data end.
            if _is_compressed(head):
                head = zlib.decompressobj(_ANY_FORMAT).decompress(head, _HEADER)
    except (OSError, zlib.error):
        return False
    return _is_header(head[:_HEADER])


def read_records(path: Path, seen: Seen = len) -> Iterator[bytes]:
    """Yields the records of a file, decompressed by its first bytes; memory holds one. `seen` gets the bytes on disk.

    Raises: DataError with the record's number, from 1, where the file is damaged or cut off.
    """
    # By its suffix a *.gz comes decompressed; what is compressed without such a name shows by its first bytes.
    with open_stream(path, seen) as stream:
        file = BufferedReader(_Inflated(path, stream), _PIECE) if _is_compressed(stream.peek(_HEADER)) else stream
        number = 0
        # Nothing at all behind a record is the end of the file; a part of a header is a file that was cut.
        while head := file.read(_HEADER):
            number += 1
            where = f"{path}: record {number:,}"
            if len(head) < _HEADER:
                raise DataError(f"{where} is cut off; {_MEND}")
            if not _is_header(head):
                what = "is damaged (the check sum of its length differs)" if number > 1 else "is no TFRecord"
                raise DataError(f"{where} {what}; {_MEND}")
            (length,) = struct.unpack_from("<Q", head)
            # A right check sum proves no good will: the length is looked at before so much is read.
            if length > LONGEST:
                raise DataError(
                    f"{where} has {length:,} bytes, more than {LONGEST:,}; give records of single sequences"
                )
            # The record and its check sum in one read.
            content = file.read(length + 4)
            if len(content) < length + 4:
                raise DataError(f"{where} is cut off; {_MEND}")
            record = content[:length]
            if masked_crc32c(record) != struct.unpack_from("<I", content, length)[0]:
                raise DataError(f"{where} is damaged (its check sum differs); {_MEND}")
            yield record


def _is_header(head: bytes) -> bool:
    # Four bytes that must fit eight others: text passes once in four thousand million files.
    return len(head) == _HEADER and masked_crc32c(head[:8]) == struct.unpack_from("<I", head, 8)[0]


def _is_compressed(head: bytes) -> bool:
    # A record's length may begin with the same two bytes: its check sum tells them apart.
    return head.startswith(_COMPRESSED) and not _is_header(head[:_HEADER])


_ANY_FORMAT = 32 + zlib.MAX_WBITS
"""Tells zlib to take both of its formats, with the header of gzip or its own."""


class _Inflated(io.RawIOBase):
    """The content of a stream in gzip's or zlib's format, of one member or several, in bounded memory."""

    def __init__(self, path: Path, file: BufferedReader) -> None:
        self._path, self._file = path, file
        self._inflater = zlib.decompressobj(_ANY_FORMAT)
        self._data = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            content = self._read(len(buffer))
        except (zlib.error, EOFError):
            raise DataError(f"{self._path}: the compressed data are damaged or cut off; {_MEND}") from None
        buffer[: len(content)] = content
        return len(content)

    def _read(self, size: int) -> bytes:
        while True:
            # A member has ended: what follows it begins another, or the file ends.
            if self._inflater.eof:
                self._data = self._inflater.unused_data or self._file.read(_PIECE)
                if not self._data:
                    return b""
                self._inflater = zlib.decompressobj(_ANY_FORMAT)
            # What the last call had no room for comes first.
            data = self._data or self._file.read(_PIECE)
            if not data:
                raise EOFError
            # At most `size` bytes, however many the data stand for; the rest waits in unconsumed_tail.
            content = self._inflater.decompress(data, size)
            self._data = self._inflater.unconsumed_tail
            if content:
                return content
