"""Reads protocol buffers without a schema: the fields of a message, by their numbers."""

from collections.abc import Iterator

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
