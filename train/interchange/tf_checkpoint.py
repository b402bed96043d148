"""TensorFlow's checkpoints (the bundle format, V2) without TensorFlow: a sorted table of entries, `*.index`, and the
numbers beside it, `*.data-00000-of-00001`.

Every length and place that a file names is looked at before anything is read. The table is LevelDB's: blocks of keys
that share the beginning of the one before, a block that lists them, and a footer that says where that one lies. Each
entry is a protocol buffer: kind 1, shape 2, shard 3, offset 4, size 5, checksum 6.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from contexture.data.errors import DataError
from contexture.data.plain_files import open_plain, read_plain
from contexture.data.tokenizers.sentencepiece_model import message_fields
from contexture.models.interchange.renaming import Shape
from contexture.train.interchange.weight_files import Array, Tensors, fits_in

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_KINDS = {1: "float32", 2: "float64", 14: "bfloat16", 19: "float16", 3: "int32", 9: "int64", 10: "bool"}
_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2, "int32": 4, "int64": 8, "bool": 1}
_CRC = 6


def open_bundle(prefix: Path) -> Tensors:
    """The tensors of a checkpoint: `open_bundle(Path("bert_model.ckpt"))`, without the file's ending.

    Raises: DataError for files that are missing, cut off, compressed, of another machine's byte order, or damaged.
    """
    index = prefix.with_name(prefix.name + ".index")
    try:
        entries = dict(_table(read_plain(index), index))
        header = dict(message_fields(entries.pop(b"", b"")))
        shards = header.get(1, 0)
        if header.get(2, 0) != 0 or not isinstance(shards, int) or not 1 <= shards <= 100_000:
            raise ValueError("its header names no shards, or another byte order")
        files = [prefix.with_name(f"{prefix.name}.data-{n:05d}-of-{shards:05d}") for n in range(shards)]
        lengths = [file.stat().st_size for file in files]
        found = {key.decode("utf-8"): _entry(key, value, lengths) for key, value in entries.items()}
    except OSError as error:
        raise DataError(f"{error.filename or index}: cannot be read ({error.strerror}); give the checkpoint's files, "
                        "all of them") from None  # fmt: skip
    except (ValueError, IndexError, TypeError, UnicodeDecodeError) as error:
        raise DataError(f"{index}: no table of a checkpoint ({str(error)[:120]}); give files that were written whole"
                        ) from None  # fmt: skip

    def load(name: str) -> Array:
        shape, kind, shard, offset, size, crc = found[name]
        try:
            with open_plain(files[shard]) as file:
                file.seek(offset)
                raw = file.read(size)
        except OSError as error:
            raise DataError(f"{files[shard]}: cannot be read ({error.strerror})") from None
        if len(raw) != size or _masked(_crc32c(raw)) != crc:
            raise DataError(f"{files[shard]}: the tensor {name} does not match its checksum; give a file that was "
                            "written whole")  # fmt: skip
        import ml_dtypes

        return np.frombuffer(raw, ml_dtypes.bfloat16 if kind == "bfloat16" else kind).reshape(shape)

    return Tensors(
        str(index), {name: e[0] for name, e in found.items()}, {name: e[1] for name, e in found.items()}, load
    )


Entry = tuple[Shape, str, int, int, int, int]


def _entry(key: bytes, value: bytes, lengths: list[int]) -> Entry:
    """(shape, kind, shard, offset, size, checksum) of a tensor that lies within its file."""
    name = key.decode("utf-8")[:100]
    shape: list[int] = []
    parts: dict[int, int] = {}
    for field, content in message_fields(value):
        if field == 2 and isinstance(content, bytes):
            sizes = [dict(message_fields(dim)).get(1, 0) for number, dim in message_fields(content) if number == 2]
            shape = [n for n in sizes if isinstance(n, int)]
        elif field == 7:
            raise ValueError(f"the tensor {name} is cut into slices, which are not read here")
        elif field == _CRC and isinstance(content, bytes):
            parts[field] = int.from_bytes(content, "little")
        elif isinstance(content, int):
            parts[field] = content
    kind, shard = _KINDS.get(parts.get(1, 0), f"number {parts.get(1, 0)}"), parts.get(3, 0)
    offset, size = parts.get(4, 0), parts.get(5, 0)
    if not shard < len(lengths) or offset + size > lengths[shard]:
        raise ValueError(f"the tensor {name} lies behind the end of its file")
    if kind in _BYTES and not fits_in(tuple(shape), _BYTES[kind], size):
        raise ValueError(f"the tensor {name} {shape} does not take {size} bytes")
    return tuple(shape), kind, shard, offset, size, parts.get(_CRC, 0)


def _table(raw: bytes, where: Path) -> Iterator[tuple[bytes, bytes]]:
    """The (key, value) of a sorted table, in order."""
    if len(raw) < _FOOTER or int.from_bytes(raw[-8:], "little") != _MAGIC:
        raise ValueError("it ends with no footer")
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
    end = offset + size
    if end + 5 > len(raw) - _FOOTER or size < 4:
        raise ValueError("a block lies behind its end")
    if raw[end] != 0:
        raise ValueError("it is compressed")
    if _masked(_crc32c(raw[offset : end + 1])) != int.from_bytes(raw[end + 1 : end + 5], "little"):
        raise ValueError("a block does not match its checksum")
    restarts = int.from_bytes(raw[end - 4 : end], "little")
    stop = end - 4 - 4 * restarts
    if stop < offset:
        raise ValueError("a block is shorter than its list of restarts")
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
    number = 0
    for shift in range(0, 64, 7):
        byte = raw[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise ValueError("a number of more than 64 bits")


def _crc_tables() -> np.ndarray:
    """[8, 256] u32: of the byte that stands n places before the last of eight."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1).astype(np.uint32)
    every = [table]
    for _ in range(7):
        every.append(((every[-1] >> 8) ^ table[every[-1] & 0xFF]).astype(np.uint32))
    return np.stack(every)


_TABLES = _crc_tables()
_LANES = 4096


def _crc32c(raw: bytes) -> int:
    """CRC-32C (Castagnoli): the rows of a long text are taken side by side, and put together at the end."""
    crc = 0
    rows = len(raw) // (8 * _LANES)
    if rows >= 8:
        lanes = np.frombuffer(raw, "<u4", 2 * rows * _LANES).reshape(_LANES, rows, 2)
        words = np.zeros(_LANES, np.uint32)
        for row in range(rows):
            words = _eight(words ^ lanes[:, row, 0], lanes[:, row, 1])
        shift = _zeros(8 * rows)
        for word in words.tolist():
            crc = _times(shift, crc) ^ word
        # the lanes began with 0, the whole with all bits set
        crc ^= _times(_zeros(8 * rows * _LANES), 0xFFFFFFFF)
        rest = raw[8 * rows * _LANES :]
    else:
        crc, rest = 0xFFFFFFFF, raw
    table = _TABLES[0].tolist()
    for byte in rest:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _eight(first: Array, second: Array) -> Array:
    t = _TABLES
    found = t[7][first & 0xFF] ^ t[6][(first >> 8) & 0xFF] ^ t[5][(first >> 16) & 0xFF] ^ t[4][first >> 24]
    return found ^ t[3][second & 0xFF] ^ t[2][(second >> 8) & 0xFF] ^ t[1][(second >> 16) & 0xFF] ^ t[0][second >> 24]


Matrix = list[int]


def _times(matrix: Matrix, word: int) -> int:
    """A matrix over bits (its columns) times a word."""
    found = 0
    for column in matrix:
        if word & 1:
            found ^= column
        word >>= 1
    return found


def _zeros(count: int) -> Matrix:
    """What `count` bytes of zeros do to a checksum."""
    table = _TABLES[0].tolist()
    power = [((1 << bit) >> 8) ^ table[(1 << bit) & 0xFF] for bit in range(32)]
    found = [1 << bit for bit in range(32)]
    while count:
        if count & 1:
            found = [_times(power, column) for column in found]
        power = [_times(power, column) for column in power]
        count >>= 1
    return found


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def find_prefix(folder: Path, usual: str) -> Path:
    """The checkpoint of a folder, without its ending: the one with the usual name, or the only one."""
    found = [folder / f"{usual}.index"] if (folder / f"{usual}.index").is_file() else sorted(folder.glob("*.index"))
    if len(found) != 1:
        names = f", but {', '.join(file.name for file in found)}" if found else ""
        raise DataError(f"{folder}: not one checkpoint *.index{names}; give a folder with one")
    return found[0].with_name(found[0].name.removesuffix(".index"))
