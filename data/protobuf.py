"""Reads and writes protocol buffers without a schema: the fields of a message, by their numbers."""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

Value = int | bytes
"""A whole number (wire type 0), or the bytes of everything else: text, messages within messages, floats."""

# Wire types 3 and 4 are groups, which protobuf deprecates. A message with one is refused below.
_VARINT, _EIGHT_BYTES, _LENGTH_FIRST, _FOUR_BYTES = 0, 1, 2, 5


def message_fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """Yields (number, value) for each field of a message, in order; `dict` keeps the last of a repeated field.

    Generated classes would not do: for BundleEntryProto they come with TensorFlow alone, and for a SentencePiece model
    each library that reads it brings its own, while a process can load only one version.

    Raises: ValueError or IndexError for bytes that are no message.
    """
    at = 0

    def varint() -> int:
        """Seven bits to a byte, the lowest first; the eighth says that another byte follows."""
        nonlocal at
        number = shift = 0
        while True:
            # Beyond the end an index raises IndexError, which callers take as damage.
            byte = message[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while at < len(message):
        # A tag is the field's number and, in its lowest three bits, the wire type.
        field, wire_type = divmod(varint(), 8)
        if wire_type == _VARINT:
            yield field, varint()
            continue
        # -1: the size is no constant, but a varint in front of the bytes.
        size = {_EIGHT_BYTES: 8, _LENGTH_FIRST: -1, _FOUR_BYTES: 4}.get(wire_type)
        if size is None:
            raise ValueError(f"a field of wire type {wire_type}")
        size = varint() if size < 0 else size
        if at + size > len(message):
            raise ValueError(f"field {field} is cut off")
        yield field, message[at : at + size]
        at += size


def message_field(number: int, value: Value) -> bytes:
    """Returns a field of a message: a whole number from 0 on, or bytes."""
    if isinstance(value, int):
        return _varint(number * 8 + _VARINT) + _varint(value)
    return _varint(number * 8 + _LENGTH_FIRST) + _varint(len(value)) + value


def packed(numbers: Iterable[int]) -> bytes:
    """Returns the content of a repeated field of whole numbers from 0 on, which is packed: one varint after the
    other."""
    return b"".join(map(_varint, numbers))


def unpacked(content: bytes) -> NDArray[np.uint64]:
    """Returns the numbers of a packed field, u64 [n]; a negative number is 2⁶⁴ more.

    Raises: ValueError for bytes that are no varints of 64 bits.
    """
    bytes_ = np.frombuffer(content, np.uint8)
    last = bytes_ < 0x80
    # Mostly zeros and ones: a byte for each number.
    if last.all():
        return bytes_.astype(np.uint64)
    if not last[-1]:
        raise ValueError("the last number is cut off")
    ends = np.flatnonzero(last)
    starts = np.append(0, ends[:-1] + 1)
    # Each byte's place within its number: seven bits each, the lowest first.
    place = np.arange(len(bytes_)) - np.repeat(starts, ends - starts + 1)
    if place.max() > 9:
        raise ValueError("a number of more than 64 bits")
    return np.add.reduceat((bytes_ & 0x7F).astype(np.uint64) << (7 * place).astype(np.uint64), starts)


def _varint(number: int) -> bytes:
    # Most numbers take one byte.
    if number < 0x80:
        return _BYTES[number]
    content = bytearray()
    while number >= 0x80:
        content.append(number & 0x7F | 0x80)
        number >>= 7
    content.append(number)
    return bytes(content)


_BYTES = tuple(bytes([number]) for number in range(0x80))
