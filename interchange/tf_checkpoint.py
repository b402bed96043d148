"""Reads TensorFlow's checkpoints (the bundle format, V2) without TensorFlow.

A checkpoint is two kinds of file: `*.index`, a sorted table of entries, and `*.data-00000-of-00001`, the numbers. The
table is LevelDB's: blocks of (key, value), a block that lists the blocks, and a footer with the position of that list.
Each value is a BundleEntryProto: dtype 1, shape 2, shard 3, offset 4, size 5, checksum 6, slices 7.

Every length and offset that a file names is checked against the file before anything is read there.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from contexture.data.errors import DataError
from contexture.data.plain_files import open_plain, read_plain
from contexture.data.protobuf import message_fields
from contexture.data.tfrecord import masked_crc32c
from contexture.interchange.renaming import Shape
from contexture.interchange.weight_files import Array, Tensors, fits_in

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_DTYPES = {1: "float32", 2: "float64", 14: "bfloat16", 19: "float16", 3: "int32", 9: "int64", 10: "bool"}
_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2, "int32": 4, "int64": 8, "bool": 1}
_CRC = 6


def open_bundle(prefix: Path) -> Tensors:
    """Opens the tensors of a checkpoint: `open_bundle(Path("bert_model.ckpt"))`, without the file's ending.

    Raises:
        DataError: when files are missing, truncated, compressed, big-endian, or damaged.
    """
    index = prefix.with_name(prefix.name + ".index")
    try:
        entries = dict(_table(read_plain(index), index))
        # The empty key holds the header: the number of shards and the byte order.
        header = dict(message_fields(entries.pop(b"", b"")))
        shards = header.get(1, 0)
        # A damaged number of shards would name billions of files.
        if header.get(2, 0) != 0 or not isinstance(shards, int) or not 1 <= shards <= 100_000:
            raise ValueError("its header names no shards, or another byte order")
        files = [prefix.with_name(f"{prefix.name}.data-{n:05d}-of-{shards:05d}") for n in range(shards)]
        lengths = [file.stat().st_size for file in files]
        tensors = {key.decode("utf-8"): _entry(key, value, lengths) for key, value in entries.items()}
    except OSError as error:
        raise DataError(
            f"{error.filename or index}: cannot be read ({error.strerror}); give the checkpoint's files, all of them"
        ) from None
    except (ValueError, IndexError, TypeError, UnicodeDecodeError) as error:
        raise DataError(
            f"{index}: no table of a checkpoint ({str(error)[:120]}); give files that were written whole"
        ) from None

    def load(name: str) -> Array:
        entry = tensors[name]
        file = files[entry.shard]
        try:
            with open_plain(file) as data:
                data.seek(entry.offset)
                raw = data.read(entry.size)
        except OSError as error:
            raise DataError(f"{file}: cannot be read ({error.strerror})") from None
        if len(raw) != entry.size or masked_crc32c(raw) != entry.checksum:
            raise DataError(
                f"{file}: the tensor {name} does not match its checksum; give a file that was written whole"
            )
        import ml_dtypes

        dtype = ml_dtypes.bfloat16 if entry.dtype == "bfloat16" else entry.dtype
        return np.frombuffer(raw, dtype).reshape(entry.shape)

    shapes = {name: entry.shape for name, entry in tensors.items()}
    return Tensors(str(index), shapes, {name: entry.dtype for name, entry in tensors.items()}, load)


class Entry(NamedTuple):
    """Where a tensor lies: `size` bytes from `offset` on in the data file `shard`."""

    shape: Shape
    dtype: str
    shard: int
    offset: int
    size: int
    checksum: int


def _entry(key: bytes, value: bytes, lengths: list[int]) -> Entry:
    """Reads the entry of a tensor, and checks that the tensor is inside its file; `lengths` are the files' bytes.

    Raises:
        ValueError: when it is not.
    """
    name = key.decode("utf-8")[:100]
    shape: list[int] = []
    numbers: dict[int, int] = {}
    for field, content in message_fields(value):
        if field == 2 and isinstance(content, bytes):  # a TensorShapeProto: its dims are fields 2, their sizes fields 1
            dims = [dim for number, dim in message_fields(content) if number == 2 and isinstance(dim, bytes)]
            sizes = [dict(message_fields(dim)).get(1, 0) for dim in dims]
            shape = [n for n in sizes if isinstance(n, int)]
        elif field == 7:
            raise ValueError(f"the tensor {name} is stored in slices, which is not supported")
        elif field == _CRC and isinstance(content, bytes):  # a fixed32
            numbers[field] = int.from_bytes(content, "little")
        elif isinstance(content, int):
            numbers[field] = content
    # Protocol buffers leave out fields that are 0.
    dtype, shard = _DTYPES.get(numbers.get(1, 0), f"number {numbers.get(1, 0)}"), numbers.get(3, 0)
    offset, size = numbers.get(4, 0), numbers.get(5, 0)
    if not shard < len(lengths) or offset + size > lengths[shard]:
        raise ValueError(f"the tensor {name} lies behind the end of its file")
    if dtype in _BYTES and not fits_in(tuple(shape), _BYTES[dtype], size):
        raise ValueError(f"the tensor {name} {shape} does not take {size} bytes")
    return Entry(tuple(shape), dtype, shard, offset, size, numbers.get(_CRC, 0))


def _table(raw: bytes, where: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yields the (key, value) pairs of a sorted table, in order.

    Raises:
        ValueError: when the table contradicts itself.
    """
    if len(raw) < _FOOTER or int.from_bytes(raw[-8:], "little") != _MAGIC:
        raise ValueError("it ends with no footer")
    # The footer: offset and size of the metaindex block, which is not needed, and of the block that lists the blocks,
    # then the magic number.
    footer = raw[-_FOOTER:-8]
    at = 0
    for _ in range(2):
        _, at = _varint(footer, at)
    offset, at = _varint(footer, at)
    size, _ = _varint(footer, at)
    last: bytes | None = None
    for _, handle in _block(raw, offset, size):
        start, at = _varint(handle, 0)
        for key, value in _block(raw, start, _varint(handle, at)[0]):
            if last is not None and key <= last:
                raise ValueError("its keys are in no order")
            yield key, value
            last = key


def _block(raw: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yields the (key, value) pairs of a block.

    A block holds entries, the offsets of entries with whole keys (restarts), and their number; a byte for the
    compression and a checksum follow it.

    Raises:
        ValueError: when the block contradicts itself.
    """
    end = offset + size
    if end + 5 > len(raw) - _FOOTER or size < 4:
        raise ValueError("a block lies behind its end")
    if raw[end] != 0:
        raise ValueError("it is compressed")
    if masked_crc32c(raw[offset : end + 1]) != int.from_bytes(raw[end + 1 : end + 5], "little"):
        raise ValueError("a block does not match its checksum")
    restarts = int.from_bytes(raw[end - 4 : end], "little")
    stop = end - 4 - 4 * restarts
    if stop < offset:
        raise ValueError("a block is shorter than its list of restarts")
    # An entry is three lengths, the end of its key, and its value; the key begins with `shared` bytes of the last key.
    at, key = offset, b""
    while at < stop:
        shared, at = _varint(raw, at)
        fresh, at = _varint(raw, at)
        length, at = _varint(raw, at)
        if shared > len(key) or at + fresh + length > stop:
            raise ValueError("an entry lies behind the end of its block")
        key = key[:shared] + raw[at : at + fresh]
        yield key, raw[at + fresh : at + fresh + length]
        at += fresh + length


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """Returns the number at position `at`, stored in seven bits a byte, and the position behind it."""
    number = 0
    for shift in range(0, 64, 7):
        byte = raw[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise ValueError("a number of more than 64 bits")


def find_prefix(folder: Path, usual: str) -> Path:
    """Returns the checkpoint of a folder, without its ending: the one with the usual name, or the only one.

    Raises:
        DataError: when the folder has none or several.
    """
    indexes = [folder / f"{usual}.index"] if (folder / f"{usual}.index").is_file() else sorted(folder.glob("*.index"))
    if len(indexes) != 1:
        names = f", but {', '.join(file.name for file in indexes)}" if indexes else ""
        raise DataError(f"{folder}: not one checkpoint *.index{names}; give a folder with one")
    return indexes[0].with_name(indexes[0].name.removesuffix(".index"))
