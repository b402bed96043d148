"""Parts of large objects of a bucket on the local disk: read by ranges, verified; the least recently used go first.

An object is read in blocks of equal size, each as it is needed, so a process fetches no more than its rows lie in. A
block's digest was written with the shards: bytes that differ are never used.
"""

import errno
import hashlib
import logging
import os
import tempfile
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from contexture.data import bucket
from contexture.data.binary_files import File
from contexture.data.bucket import Address
from contexture.data.errors import DataError

logger = logging.getLogger(__name__)

BLOCK = 1 << 18
"""Bytes of a block. A row of a corpus that does not fit the cache costs one: larger blocks bring more that is not used,
smaller ones more requests."""
DIGEST = 8
"""Bytes of a block's digest, BLAKE2b."""
_ROUND = 256
"""Parts that are read together: this many blocks are in memory at most."""
_LONGEST = 32
"""Neighbouring blocks that are one request."""


def block_digests(paths: Iterable[Path]) -> bytes:
    """Returns the digests of all blocks of some files, one after the other; they are computed on all cores."""
    digests = bytearray()
    # Reading and hashing release the interpreter's lock.
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for path in paths:
            read = File(path).read
            # The last block of a file is shorter: blocks never reach into the next file.
            places = range(0, path.stat().st_size, BLOCK)
            digests += b"".join(pool.map(lambda at, read=read: _digest(read(BLOCK, at)), places))
    return bytes(digests)


def _digest(block: bytes) -> bytes:
    return hashlib.blake2b(block, digest_size=DIGEST).digest()


class Piece(NamedTuple):
    """Bytes at … at+size-1 of a file."""

    name: str
    size: int
    at: int


class _Part(NamedTuple):
    """The bytes of a piece that lie in one block: their place in it."""

    block: int
    first: int
    last: int


class BlockCache:
    """Files of a folder in a bucket, read by any number of threads."""

    def __init__(self, folder: Address, sizes: Mapping[str, int], digests: bytes, limit: float) -> None:
        """Opens files whose blocks are then fetched as they are read.

        Args:
            folder: where the files lie.
            sizes: their names and bytes, in the order of the digests.
            digests: as `block_digests` gives them.
            limit: bytes of local disk that blocks may take.
        """
        self.folder = folder
        self.blocks_read = self.requests = self.bytes_fetched = self.blocks_fetched = 0
        """Blocks that were asked for; requests, bytes and blocks that were fetched for them."""
        self._sizes, self._digests = sizes, digests
        # Blocks of all files are numbered through, from the first number of each file on.
        self._firsts: dict[str, int] = {}
        count = 0
        for name, size in sizes.items():
            self._firsts[name] = count
            count += -(-size // BLOCK)
        # In the order of their blocks; an empty file has none.
        self._names = [name for name, size in sizes.items() if size]
        # The index names the size of the digests' file, which follows from the sizes of the others.
        assert len(digests) == count * DIGEST
        # One file without a name, which ends with the process: block n of the cache is at n · BLOCK.
        with tempfile.TemporaryFile() as file:
            self._number = os.dup(file.fileno())
        # Whole blocks alone have a place: what is left of the limit stays unused.
        self._capacity = int(limit) // BLOCK
        self._places: OrderedDict[int, int] = OrderedDict()
        """Where the blocks that are kept lie in the file, by their number; the least recently used first."""
        self._in_flight: set[int] = set()
        self._lock = threading.Condition()

    def __del__(self) -> None:
        # Opening may have failed, before there was a descriptor.
        if hasattr(self, "_number"):
            os.close(self._number)

    def read(self, pieces: Sequence[Piece]) -> list[bytes]:
        """Returns the bytes of pieces, all that must be fetched under way together.

        Raises:
            BucketError: where the bucket cannot be read.
            DataError: for a block that is not as it was written.
        """
        parts = [_parts_of(self._firsts[piece.name], piece) for piece in pieces]
        flat = [part for each in parts for part in each]
        with self._lock:
            self.blocks_read += len({part.block for part in flat})
        read: list[bytes] = []
        # In rounds: a piece may be longer than memory.
        for at in range(0, len(flat), _ROUND):
            read += self._read(flat[at : at + _ROUND])
        # Back to one value for each piece, which may lie in several blocks.
        values = iter(read)
        return [b"".join(next(values) for _ in each) for each in parts]

    def _read(self, parts: Sequence[_Part]) -> list[bytes]:
        values: dict[_Part, bytes] = {}
        missing: set[int] = set()
        # Read under the lock: another thread may give the place of a block to its own.
        with self._lock:
            for part in parts:
                place = self._places.get(part.block)
                if place is None:
                    missing.add(part.block)
                    continue
                self._places.move_to_end(part.block)
                values[part] = os.pread(self._number, part.last - part.first, place * BLOCK + part.first)
            # A block that another thread is fetching is not fetched twice.
            mine = missing - self._in_flight
            self._in_flight |= mine
        # Outside the lock: other threads read meanwhile, and fetch what they lack.
        try:
            fetched = self._fetch(sorted(mine))
        finally:
            with self._lock:
                self._in_flight -= mine
                self._lock.notify_all()
        values |= {part: fetched[part.block][part.first : part.last] for part in parts if part.block in mine}
        if late := [part for part in parts if part not in values]:
            with self._lock:
                self._lock.wait_for(lambda: not self._in_flight & {part.block for part in late})
            # Kept by now; fetched here where there was no room, or where the other thread failed.
            values |= zip(late, self._read(late), strict=True)
        return [values[part] for part in parts]

    def _fetch(self, blocks: list[int]) -> dict[int, bytes]:
        """Returns blocks from the bucket, and keeps them."""
        # Neighbours in one file are one request.
        runs: list[tuple[str, int, int]] = []
        for block in blocks:
            name = self._name_of(block)
            # Not too long: requests of one batch are under way side by side.
            if runs and runs[-1][0] == name and runs[-1][2] == block and block - runs[-1][1] < _LONGEST:
                runs[-1] = name, runs[-1][1], block + 1
            else:
                runs.append((name, block, block + 1))
        # Places in the object, whose last block is shorter.
        ranges = []
        for name, first, last in runs:
            start = self._firsts[name]
            ranges.append((self.folder / name, (first - start) * BLOCK, min((last - start) * BLOCK, self._sizes[name])))
        values = bucket.read_ranges(ranges)
        fetched: dict[int, bytes] = {}
        for (name, first, last), value in zip(runs, values, strict=True):
            for block in range(first, last):
                # Each block by itself, though several came together.
                fetched[block] = value[(block - first) * BLOCK : (block - first + 1) * BLOCK]
                if _digest(fetched[block]) != self._digests[block * DIGEST : (block + 1) * DIGEST]:
                    at = (block - self._firsts[name]) * BLOCK
                    raise DataError(
                        f"{self.folder / name}: damaged, bytes {at}… are not those that were written (their digest "
                        "differs); prepare the text again into another folder"
                    )
        # Figures and places belong to all threads.
        with self._lock:
            self.requests += len(runs)
            self.blocks_fetched += len(fetched)
            self.bytes_fetched += sum(map(len, values))
            self._keep(fetched)
        return fetched

    def _name_of(self, block: int) -> str:
        # The last file that begins at this number or before it. By bisection: a large text has thousands of files.
        return self._names[bisect_right(self._names, block, key=self._firsts.__getitem__) - 1]

    def _keep(self, fetched: Mapping[int, bytes]) -> None:
        """Writes blocks to the local file, in place of those that were not read for the longest time."""
        for block, value in fetched.items():
            # Another thread may have fetched it too.
            if block in self._places or not self._capacity:
                continue
            full = len(self._places) >= self._capacity
            place = self._places.popitem(last=False)[1] if full else len(self._places)
            # A disk may take a part of a block before it is full: such a block is not kept.
            try:
                written = os.pwrite(self._number, value, place * BLOCK)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                    raise
                written = 0
            if written < len(value):
                # What is kept so far stays; all else is fetched each time that it is read.
                self._capacity = len(self._places)
                logger.warning(
                    f"{tempfile.gettempdir()} is full: only {self._capacity * BLOCK / 1e9:.1f} GB of {self.folder} are "
                    "kept on this disk; make room, or lower --data.cache-gb"
                )
                return
            self._places[block] = place

    def describe(self) -> str:
        """Describes what was fetched, in a sentence; "" where nothing was read."""
        if not self.blocks_read:
            return ""
        share = 1 - self.blocks_fetched / self.blocks_read
        return (
            f"{self.bytes_fetched / 1e6:,.1f} MB of {self.folder} were fetched in {self.requests:,} requests; "
            f"{max(share, 0):.0%} of reads were answered by this machine's disk"
        )


def _parts_of(first: int, piece: Piece) -> list[_Part]:
    """Cuts a piece at the borders of blocks. first: the number of its file's first block."""
    parts, at, end = [], piece.at, piece.at + piece.size
    # Up to the end of each block, then on with the next one; a piece of no bytes has no parts.
    while at < end:
        block, begin = divmod(at, BLOCK)
        stop = min(end - block * BLOCK, BLOCK)
        parts.append(_Part(first + block, begin, stop))
        at = block * BLOCK + stop
    return parts
