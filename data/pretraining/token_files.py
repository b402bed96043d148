"""The token files of shards while they are written: one long row of ids, cut into files of the same number of ids."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from contexture.data.binary_files import HashingWriter


class TokenFiles:
    """tokens-00000.bin, tokens-00001.bin, …, each with `per_file` ids of `dtype`; the last one has what is left."""

    def __init__(self, folder: Path, dtype: np.dtype[np.integer], per_file: int) -> None:
        self._folder, self._dtype, self._per_file = folder, dtype, per_file
        self._count = 0
        self.files: list[HashingWriter] = []
        """All of them in their order; the last one is being written, the others are closed."""

    def write(self, ids: NDArray[np.integer]) -> None:
        """Appends ids to the row."""
        written = 0
        while written < len(ids):
            # A file is created when its first id is written, so no file is empty.
            number, at = divmod(self._count, self._per_file)
            if not at:
                if self.files:
                    self.files[-1].file.close()
                self.files.append(HashingWriter(self._path(number)))
            part = ids[written : written + self._per_file - at]
            self.files[-1].write(part.tobytes())
            written += len(part)
            self._count += len(part)

    def read(self, start: int, end: int) -> NDArray[np.integer]:
        """Reads ids start … end-1 back."""
        # What is still in Python's buffer would be missing from the file.
        if self.files and not self.files[-1].file.closed:
            self.files[-1].file.flush()
        parts = []
        while start < end:
            number, at = divmod(start, self._per_file)
            count = min(end - start, self._per_file - at)
            parts.append(np.fromfile(self._path(number), self._dtype, count, offset=at * self._dtype.itemsize))
            start += count
        return np.concatenate(parts)

    def _path(self, number: int) -> Path:
        return self._folder / f"tokens-{number:05d}.bin"
