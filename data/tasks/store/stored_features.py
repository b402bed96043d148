"""What a frozen backbone computes of the examples of a split: written once, then read by the numbers of examples.

    index.json    "format": 1, what the numbers depend on, the arrays, size and sha256 of each file
    places.bin    i64 [sequences, 2]: where a sequence's states begin in states.bin, in tokens, and how many it has; -1
                  for one that is not held
    states.bin    for each sequence [layers, tokens, width], in the order in which they were computed; no padding
    pooled.bin    [sequences, width]

An example has one sequence, or several in a row: alternatives, two orders of a pair, two texts of a pair. The files of
numbers are mapped, so that memory does not grow with the examples.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from contexture.data.binary_files import I64, FileEntry, HashingWriter, check_bytes, close_all, fingerprint_of, misfit
from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError
from contexture.data.layouts import Batch
from contexture.data.plain_files import read_plain
from contexture.data.storage import atomic_folder

FORMAT = 1
INDEX, PLACES, STATES, POOLED = "index.json", "places.bin", "states.bin", "pooled.bin"
_MEND = "delete the folder and start the command again"
_INDEX = {"format": int, "of": dict, "sequences": int, "files": dict, "fingerprint": str}


@dataclass(frozen=True)
class Shape:
    """What is stored of a sequence. layers: how many; 0: no states. width: D."""

    layers: int
    width: int
    pooled: bool
    dtype: np.dtype[np.generic]


class FeatureWriter:
    """Writes the features of a split, batch by batch, each sequence once."""

    def __init__(self, folder: Path, shape: Shape, sequences: int) -> None:
        self._shape, self._tokens = shape, 0
        # -1 until a sequence is added.
        self._places = np.full((sequences, 2), -1, np.int64)
        self._pooled = np.zeros((sequences, shape.width), shape.dtype) if shape.pooled else None
        self.files = [HashingWriter(folder / PLACES)]
        self._states = HashingWriter(folder / STATES) if shape.layers else None
        self.files += [self._states] if self._states is not None else []

    def add(self, sequences: I64, mask_BL: NDArray[np.int32], features: Mapping[str, np.ndarray]) -> None:
        """Adds sequences by their numbers: mask i32 BL, states BNLD, pooled BD."""
        lengths_B = mask_BL.sum(1)
        # Row by row, since each sequence has a length of its own.
        for row, (number, length) in enumerate(zip(sequences.tolist(), lengths_B.tolist(), strict=True)):
            # Without states every place is 0; the length still says that the sequence is held.
            self._places[number] = self._tokens, length
            if self._states is not None:
                # Without padding, and contiguous: layers, then tokens, then width.
                self._states.write(np.ascontiguousarray(features["states"][row, :, :length]).tobytes())
                self._tokens += length
        # States are written as they come; pooled vectors at the end, in the order of the sequences.
        if self._pooled is not None:
            self._pooled[sequences] = features["pooled"]

    def close(self, folder: Path, of: Mapping[str, object]) -> None:
        """Writes what is left, and the index. of: what the numbers depend on."""
        self.files[0].write(self._places.astype("<i8").tobytes())
        if self._pooled is not None:
            self.files.append(HashingWriter(folder / POOLED))
            self.files[-1].write(self._pooled.tobytes())
        files = {each.path.name: each.entry() for each in self.files}
        index: dict[str, object] = {"format": FORMAT, "of": of, "sequences": len(self._places), "files": files}
        # As `open` will read it: through JSON, a tuple becomes a list.
        index = json.loads(json.dumps(index))
        with open(folder / INDEX, "w", encoding="utf-8") as file:
            json.dump({**index, "fingerprint": fingerprint_of(index)}, file, indent=1)


@contextlib.contextmanager
def writing(folder: Path, shape: Shape, sequences: int, of: Mapping[str, object]) -> Iterator[FeatureWriter]:
    """Gives a writer of a split's features; afterwards they are in the folder, or the work has failed and nothing is
    left of them."""
    with atomic_folder(folder) as part:
        writer = FeatureWriter(part, shape, sequences)
        try:
            yield writer
            writer.close(part, of)
        finally:
            # Closed in any case, before the folder is renamed or removed.
            close_all(writer.files)


class FeatureFiles:
    """The features of a split, opened for reading by any number of threads."""

    def __init__(self, folder: Path, shape: Shape, sequences: int) -> None:
        def mapped(name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> np.ndarray:
            # An empty file cannot be mapped.
            if not (folder / name).stat().st_size:
                return np.zeros(shape, dtype)
            return np.memmap(folder / name, dtype, "r", shape=shape)

        self.folder, self.shape = folder, shape
        self._places = mapped(PLACES, (sequences, 2), np.dtype("<i8"))
        # How many numbers there are follows from the file's size.
        size = (folder / STATES).stat().st_size // shape.dtype.itemsize if shape.layers else 0
        self._states = mapped(STATES, (size,), shape.dtype) if shape.layers else None
        self._pooled = mapped(POOLED, (sequences, shape.width), shape.dtype) if shape.pooled else None

    @staticmethod
    def open(folder: Path, shape: Shape, of: Mapping[str, object], cancel: CancelToken = NEVER) -> "FeatureFiles":
        """Raises: DataError where the folder holds none, or others, or they are not as they were written."""
        file = folder / INDEX
        try:
            index = json.loads(read_plain(file))
        except (OSError, ValueError, RecursionError, DataError):
            raise DataError(f"{file}: cannot be read; {_MEND}") from None
        if not isinstance(index, dict) or misfit(index, _INDEX) or index["format"] != FORMAT:
            raise DataError(f"{file}: not of format {FORMAT}; {_MEND}")
        # Features of other parameters or examples would be wrong without a sign.
        if index["fingerprint"] != fingerprint_of(index) or index["of"] != json.loads(json.dumps(of)):
            raise DataError(f"{file}: damaged, or of other parameters or examples; {_MEND}")
        files: dict[str, FileEntry] = index["files"]
        for name, entry in files.items():
            check_bytes(folder / name, entry["sha256"], _MEND, cancel)
        return FeatureFiles(folder, shape, index["sequences"])

    def add(self, batch: Batch, numbers: I64) -> Batch:
        """Returns the batch of the examples with these numbers, with their `states` BNLD (0 at padding) and `pooled`
        BD."""
        mask, shape, added = batch["mask"], self.shape, dict[str, np.ndarray]()
        rows, length = mask.shape[:-1], mask.shape[-1]
        # The dims after the first are the sequences of an example.
        count, several = int(np.prod(rows)), int(np.prod(rows[1:]))
        sequences = (numbers[:, None] * several + np.arange(several)).ravel()
        # A length of -1 marks a sequence that is not held.
        if (missing := sequences[self._places[sequences, 1] < 0]).size:
            raise DataError(f"sequence {missing[0]} has no stored features; {_MEND}")
        if shape.pooled:
            assert self._pooled is not None
            added["pooled"] = self._pooled[sequences]
        if shape.layers:
            added["states"] = np.zeros((count, shape.layers, length, shape.width), shape.dtype)
            # A row that only fills up a batch may have no tokens.
            for row, (sequence, tokens) in enumerate(
                zip(sequences.tolist(), mask.reshape(count, length).sum(1).tolist(), strict=True)
            ):
                added["states"][row, :, :tokens] = self._states_of(sequence)[:, :tokens]
        return {**batch, **{name: x.reshape(*rows, *x.shape[1:]) for name, x in added.items()}}

    def _states_of(self, sequence: int) -> np.ndarray:
        """Returns the states of a sequence, NLD, of its own length."""
        assert self._states is not None
        # Before it lie `start` tokens, each in all layers: start · n · width numbers.
        (start, length), n, width = self._places[sequence].tolist(), self.shape.layers, self.shape.width
        return self._states[start * n * width : (start + length) * n * width].reshape(n, length, width)
