"""Shards: tokenised text on disk, and its index of sentences, documents, splits and where it all came from.

    tokens-00000.bin …   u16 (u32 where the vocabulary needs it), one long row of ids cut every PER_FILE of them
    sentences.bin        u64 [sentences + 1], where each sentence begins in that row, and the end
    train.bin, dev.bin   u64 [documents, 2], first sentence and the sentence after the last, a document a line
    unigrams.bin         i64 [V], how often each id occurs in the train split
    tokenizer/           the tokenizer that made them
    index.json           "format": 1, counts, sizes, sources with their sha256, a fingerprint of everything

Everything is read by position (pread): nothing is held or mapped, so memory does not grow with the text.
`data.prepare` writes the folder.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.config import DataConfig
from data.errors import DataError
from data.sources import KINDS
from data.tokenizer import WordPiece, load_tokenizer

FORMAT = 1
INDEX = "index.json"
SPLITS = ("train", "dev")
PER_FILE = 1 << 27
"""Ids in a token file."""

I64 = NDArray[np.int64]


class _File:
    """Bytes of a file by their place; closed when it is forgotten."""

    def __init__(self, path: Path) -> None:
        self._number = os.open(path, os.O_RDONLY)

    def read(self, count: int, at: int) -> bytes:
        return os.pread(self._number, count, at)

    def __del__(self) -> None:
        if hasattr(self, "_number"):
            os.close(self._number)


@dataclass(frozen=True)
class Split:
    """One side of the text. `blocks` are contiguous runs of documents: the first document of each, and their number."""

    name: str
    documents: int
    sentences: int
    tokens: int
    blocks: tuple[int, ...]
    file: _File

    def bounds(self, first: int, last: int) -> I64:
        """First sentence and the one after the last of documents first … last-1 → i64 [n, 2]."""
        raw = self.file.read((last - first) * 16, first * 16)
        return np.frombuffer(raw, "<i8").reshape(-1, 2)

    def document(self, number: int) -> tuple[int, int]:
        """Its first sentence and the one after its last."""
        raw = self.file.read(16, number * 16)
        return int.from_bytes(raw[:8], "little"), int.from_bytes(raw[8:], "little")


class Shards:
    """A folder of shards, opened for reading by any number of threads."""

    def __init__(self, folder: Path, index: dict[str, Any]) -> None:
        self.folder = folder
        self.index = index
        self.vocabulary: int = index["vocabulary"]
        self.tokens: int = index["tokens"]
        self.sentences: int = index["sentences"]
        self.fingerprint: str = index["fingerprint"]
        """sha256 (hex) over the tokenizer, the sources' bytes, and how they were cut and split."""
        self.tokenizer_fingerprint: str = index["tokenizer"]
        self.dtype = np.dtype(index["dtype"])
        self.splits = {name: _split(folder, name, index["splits"][name]) for name in SPLITS}
        self._per_file: int = index["per_file"]
        self._offsets = _File(folder / "sentences.bin")
        self._tokens = [_File(folder / name) for name in index["files"] if name.startswith("tokens-")]

    @staticmethod
    def is_at(folder: str | Path) -> bool:
        """Whether the folder holds shards (of any format)."""
        return (Path(folder) / INDEX).is_file()

    @staticmethod
    def open(folder: str | Path) -> "Shards":
        """Raises: DataError where there are no shards, of another format, or where a file is missing or cut short."""
        folder = Path(folder)
        mend = f"remove {folder} and prepare the text again"
        if not Shards.is_at(folder):
            raise DataError(f"{folder}: holds no shards ({INDEX} is missing); {mend}")
        try:
            index = json.loads((folder / INDEX).read_text("utf-8"))
            format = index["format"]
        except (ValueError, KeyError, TypeError):
            raise DataError(f"{folder / INDEX}: not the index of shards; {mend}") from None
        if format != FORMAT:
            raise DataError(f"{folder}: shards of format {format!r}, this reads format {FORMAT}; {mend}")
        for name, size in index["files"].items():
            file = folder / name
            if not file.is_file():
                raise DataError(f"{file}: missing; {mend}")
            if file.stat().st_size != size:
                raise DataError(f"{file}: {file.stat().st_size} bytes where the index says {size}; {mend}")
        return Shards(folder, index)

    @cached_property
    def tokenizer(self) -> WordPiece:
        """The tokenizer kept inside. Raises: DataError where it is not the one that made the shards."""
        tokenizer = load_tokenizer(self.folder / "tokenizer")
        if tokenizer.fingerprint != self.tokenizer_fingerprint:
            raise DataError(
                f"{self.folder / 'tokenizer'}: not the tokenizer that made these shards; "
                f"remove {self.folder} and prepare the text again"
            )
        return tokenizer

    def unigrams(self) -> I64:
        """How often each id occurs in the train split → i64 [V]."""
        return np.fromfile(self.folder / "unigrams.bin", "<i8")

    def offsets(self, first: int, last: int) -> I64:
        """Where sentences first … last begin among all tokens (last included, so that lengths are differences)."""
        return np.frombuffer(self._offsets.read((last - first + 1) * 8, first * 8), "<i8")

    def read(self, starts: I64, lengths: I64) -> NDArray[np.integer]:
        """Spans of the row of all tokens, joined: starts i64 [n], lengths i64 [n] → ids [sum of lengths]."""
        if len(starts) > 1:  # spans that touch are one span
            apart = np.flatnonzero(np.append(True, starts[1:] != starts[:-1] + lengths[:-1]))
            starts, lengths = starts[apart], np.add.reduceat(lengths, apart)
        width, per, files = self.dtype.itemsize, self._per_file, self._tokens
        pieces = []
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            file, at = divmod(start, per)
            while at + length > per:
                pieces.append(files[file].read((per - at) * width, at * width))
                file, at, length = file + 1, 0, length - (per - at)
            pieces.append(files[file].read(length * width, at * width))
        return np.frombuffer(b"".join(pieces), self.dtype)

    def sources_changed(self, config: DataConfig) -> str:
        """A sentence saying how the text that `config` names differs by name or size from what was read, or ""."""
        if not config.path or Path(config.path[0]).resolve() == self.folder.resolve():
            return ""
        was = {(source["split"], source["name"]): source["size"] for source in self.index["sources"]}
        files = [("train", file) for file in _present(config.path)] + [("dev", file) for file in _present(config.dev)]
        for split, file in files:
            size = file.stat().st_size
            if (split, file.name) not in was:
                return f"{file} was not there when {self.folder} was prepared"
            if size not in {s["size"] for s in self.index["sources"] if (s["split"], s["name"]) == (split, file.name)}:
                return f"{file} has {size} bytes and had {was[split, file.name]} when {self.folder} was prepared"
        return ""


def _present(paths: Iterable[str]) -> list[Path]:
    """The files among these that still exist."""
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_file():
            files.append(path)
        elif path.is_dir():
            files += sorted(file for file in path.iterdir() if file.suffix in KINDS and file.is_file())
    return files


def _split(folder: Path, name: str, counts: dict[str, Any]) -> Split:
    file, blocks = _File(folder / f"{name}.bin"), tuple(counts["blocks"])
    return Split(name, counts["documents"], counts["sentences"], counts["tokens"], blocks, file)
