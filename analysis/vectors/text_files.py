"""Vectors as text: tab-separated rows, and word2vec's text format."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO, Protocol

import numpy as np

from contexture.data.errors import DataError

_HEADER = 40
"""Bytes of the first line of a *.txt, which names the number of vectors and is written last."""
_BREAKS = re.compile("[\t\r\n]")
_COLUMNS = {"sentences": "text", "words": "word", "tokens": "token"}


class WriteText(Protocol):
    """As `vector_files.Write`."""

    def __call__(self, text: str, array: np.ndarray, names: Sequence[str] = (), /) -> None: ...


def _numbers(row: np.ndarray, separator: str) -> str:
    """Returns numbers in 9 digits, which restore a float32 bit for bit."""
    return separator.join(["%.9g"] * len(row)) % tuple(row.tolist())


@contextmanager
def tsv_writer(file: Path, of: str, layers: str) -> Iterator[WriteText]:
    """Gives the function that writes a line's vectors to a *.tsv, a row for each vector.

    The first row names the columns: `line`, from 0; `text`, `word` or `token`; `layer` if there are several; and 0 to
    D - 1 for the numbers. Nothing is quoted: a tab or a line end within a name becomes a space.
    """
    several = layers == "all" or "," in layers
    with open(file, "w", encoding="utf-8", newline="\n") as opened:
        lines = count()
        started = False

        def write(text: str, array: np.ndarray, names: Sequence[str] = ()) -> None:
            nonlocal started
            line, array = next(lines), np.asarray(array, np.float32)
            if of == "sentences":
                array, names = array[..., None, :], [text]
            # [layers, names, D], with one layer too.
            blocks = array if array.ndim == 3 else array[None]
            if not started:
                columns = ["line", _COLUMNS[of], *(["layer"] if several else []), *map(str, range(array.shape[-1]))]
                opened.write("\t".join(columns) + "\n")
                started = True
            numbers = layers.split(",") if "," in layers else map(str, range(len(blocks)))
            for layer, vectors in zip(numbers, blocks, strict=True):
                for name, row in zip(names, vectors, strict=True):
                    head = [str(line), _BREAKS.sub(" ", name), *([layer] if several else [])]
                    opened.write("\t".join([*head, _numbers(row, "\t")]) + "\n")

        yield write


@contextmanager
def word2vec_writer(file: Path) -> Iterator[WriteText]:
    """Gives the function that writes word2vec's text format: a line `count D`, then a line `name x x x …` per vector.

    A word that occurs several times has several lines. The function raises DataError for a name that is empty or has
    white space, which the format cannot hold.
    """
    with open(file, "wb") as opened:
        lines, written, width = count(), 0, 0
        _write_header(opened, written, width)

        def write(text: str, array: np.ndarray, names: Sequence[str] = ()) -> None:
            nonlocal written, width
            line, vectors = next(lines), array.reshape(-1, array.shape[-1])  # layers=2 gives [1, units, D]
            for name, row in zip(names, vectors, strict=True):
                if len(name.split()) != 1 or name != name.strip():
                    raise DataError(
                        f"line {line + 1}: the token {name!r} has a space or is empty, and word2vec's format has no "
                        "form for that; give --of words, or --to *.tsv"
                    )
                opened.write(f"{name} {_numbers(row, ' ')}".encode() + b"\n")
            written, width = written + len(vectors), array.shape[-1]

        yield write
        opened.seek(0)
        _write_header(opened, written, width)


def _write_header(opened: IO[bytes], written: int, width: int) -> None:
    # Readers split the line at white space, so blanks may pad it: the final numbers overwrite it in place.
    opened.write(f"{written} {width}".ljust(_HEADER - 1).encode() + b"\n")
