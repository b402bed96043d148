"""Static word vectors as others publish them: word2vec, GloVe and fastText files → words and an array.

| form | content |
|---|---|
| word2vec text, fastText *.vec | a line `count dim`, then a line `word x x x …` for each word |
| GloVe text | the same without the first line |
| word2vec binary | a line `count dim`, then for each word its bytes, a space, and dim float32, little-endian |

The form is known from the content. A word may hold spaces, as some of GloVe's do: the last dim fields are the numbers.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from contexture.data.cancel import NEVER, CancelToken
from contexture.data.errors import DataError
from contexture.data.plain_files import check_content, open_stream
from contexture.data.text.written_numbers import written_number
from contexture.data.visible import visible

Form: TypeAlias = Literal["text", "text with a header", "binary"]

_BLOCK = 1 << 22
"""Bytes that are parsed together."""
_HEAD = 1 << 16
"""Bytes from which the form and the dimension are known."""
_LONGEST_LINE = 1 << 20
_LONGEST_WORD = 1 << 16
"""Bytes of a word in a binary file. More of them without a space are no word."""
_LONGEST_VECTOR = 1 << 16
_MEND = "give the file as it was published"


@dataclass(frozen=True)
class WordVectors:
    """Words and their vectors, in the order of the file."""

    words: list[str]
    vectors_VD: NDArray[np.float32]
    form: Form
    left_out: int = 0
    """How many rows have a word that is not UTF-8. No text could ask for it."""
    first_left_out: str = ""
    """Where the first of them is: file:line."""

    def note(self) -> str:
        """Returns a line about the rows that were left out, or ""."""
        if not self.left_out:
            return ""
        rows = "1 word is" if self.left_out == 1 else f"{self.left_out:,} words are"
        return f"{self.first_left_out}: {rows} not UTF-8, this one first; left out, since no text can hold them"


def read_word_vectors(path: str | Path, cancel: CancelToken = NEVER) -> WordVectors:
    """Reads a file of word vectors, also a compressed one (*.gz, *.bz2, *.xz, *.zst).

    Args:
        path: the file.
        cancel: may raise to stop the work.

    Raises:
        DataError: with file:line (file:number of the word in a binary file), for an empty file, a header that is not
            true, a row of another length, what is no number, NaN and infinity, a word that occurs twice, a file that is
            cut off, and one without a word in UTF-8.
    """
    path = Path(path)
    try:
        # Archives and tables are named as what they are, before anything of them is taken for a word.
        check_content(path)
        with open_stream(path) as file:
            rows = _Rows(path)
            form = _read(file, rows, cancel)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give a file of word vectors") from None
    if not rows.places:
        raise DataError(f"{path}: no word is UTF-8; save the file as UTF-8")
    return WordVectors([*rows.places], rows.array(), form, rows.left_out, rows.first_left_out)


@dataclass
class _Rows:
    """The rows that were read so far."""

    path: Path
    places: dict[str, int] = field(default_factory=dict)
    """Each word's line, or its number in a binary file."""
    blocks: list[NDArray[np.float32]] = field(default_factory=list)
    read: int = 0
    left_out: int = 0
    first_left_out: str = ""

    def add(self, words: Sequence[bytes], numbers: Sequence[int], block_BD: NDArray[np.float32]) -> None:
        """Adds rows, each with its number in the file. Those whose word is not UTF-8 are left out and counted.

        Raises: DataError for NaN and infinity, and a word that occurs twice.
        """
        # One test for the whole block; the row is looked for only where it fails.
        finite_B = np.isfinite(block_BD).all(1)
        if not finite_B.all():
            row = int(finite_B.argmin())
            value = block_BD[row][~np.isfinite(block_BD[row])][0]
            word = visible(words[row].decode(errors="replace"))[:40]
            raise DataError(f"{self.path}:{numbers[row]}: the vector of {word!r} holds {value}; {_MEND}")
        kept: list[int] = []
        # Words one by one, since each may be at fault by itself.
        for row, raw in enumerate(words):
            try:
                word = raw.decode()
            except UnicodeDecodeError:
                self.left_out += 1
                self.first_left_out = self.first_left_out or f"{self.path}:{numbers[row]}"
                continue
            if word in self.places:
                raise DataError(
                    f"{self.path}:{numbers[row]}: the word {visible(word)[:40]!r} occurs twice, first at "
                    f":{self.places[word]}; keep one of them"
                )
            self.places[word] = numbers[row]
            kept.append(row)
        self.read += len(words)
        # Nothing is copied where no row is left out.
        self.blocks.append(block_BD if len(kept) == len(words) else block_BD[kept])

    def array(self) -> NDArray[np.float32]:
        """Returns all vectors as one array. Each block is freed once it is copied, so that no two copies exist."""
        vectors_VD = np.empty((len(self.places), self.blocks[0].shape[1]), np.float32)
        at = 0
        # Reversed, so that pop() gives the first block.
        self.blocks.reverse()
        while self.blocks:
            block_BD = self.blocks.pop()
            vectors_VD[at : at + len(block_BD)] = block_BD
            at += len(block_BD)
        return vectors_VD


def _read(file: BufferedReader, rows: _Rows, cancel: CancelToken) -> Form:
    """Reads all rows, and returns the file's form."""
    # A byte-order mark belongs to no word.
    first = _read_line(file, rows.path, 1).removeprefix(b"\xef\xbb\xbf")
    # Two whole numbers alone are a header; without one it is GloVe's form.
    header = _header(first)
    if not header:
        # Without a header the first line is a row: it goes back in front of the others.
        head = first + file.read(_HEAD)
        dim = _commonest_dim(head)
        if not head.strip():
            raise DataError(f"{rows.path}: empty; give a file of word vectors")
        if not dim:
            raise DataError(
                f"{rows.path}:1: neither a header (count dim) nor a word and its numbers; give a file of word vectors"
            )
        _read_text(file, head, 1, dim, rows, cancel)
        return "text"
    count, dim = header
    if not count or not 0 < dim <= _LONGEST_VECTOR:
        raise DataError(f"{rows.path}:1: the header gives {count:,} words of {dim:,} numbers; {_MEND}")
    head = file.read(_HEAD)
    if not head:
        raise DataError(f"{rows.path}:2: the file ends behind its header, which gives {count:,} words; {_MEND}")
    # Both other forms have a header; what follows it tells them apart.
    binary = _is_binary(head)
    if binary:
        _read_binary(file, head, count, dim, rows, cancel)
    else:
        _read_text(file, head, 2, dim, rows, cancel)
    # Rows that were left out are counted too: the header is about the file.
    if rows.read != count:
        at = "" if binary else ":1"
        raise DataError(f"{rows.path}{at}: the header gives {count:,} words, and the file has {rows.read:,}; {_MEND}")
    return "binary" if binary else "text with a header"


def _header(line: bytes) -> tuple[int, int] | None:
    """Returns (count, dim) of a first line that holds two whole numbers and nothing else."""
    fields = line.split()
    # Of bytes, isdigit knows ASCII digits only.
    if len(fields) != 2 or not all(one.isdigit() and len(one) < 16 for one in fields):
        return None
    return int(fields[0]), int(fields[1])


def _read_line(file: BufferedReader, path: Path, number: int) -> bytes:
    # Bounded, since a file of another kind may have no line feed for gigabytes.
    line = file.readline(_LONGEST_LINE)
    if len(line) == _LONGEST_LINE and not line.endswith(b"\n"):
        raise DataError(f"{path}:{number}: a line of more than {_LONGEST_LINE:,} bytes; give a file of word vectors")
    return line


def _is_binary(head: bytes) -> bool:
    """Returns whether float32 numbers follow the header. A row of text ends in a number; bytes that are no text have
    control characters, or are not UTF-8."""
    fields = head.split(b"\n", 1)[0].split()
    if len(fields) > 1 and _number(fields[-1]) is not None:
        return False
    characters = head.decode(errors="replace")
    return "\ufffd" in characters or any(one < " " and one not in "\t\n\r" for one in characters)


def _number(text: bytes) -> float | None:
    return written_number(text.decode("latin-1"))


def _commonest_dim(head: bytes) -> int:
    """Returns the commonest number of fields after the first in a file's first lines, since words with spaces and wrong
    rows are never most of them; 0 where no such line ends in a number."""
    lines = head.split(b"\n")
    # The last line of a head may be cut.
    lines = [line.split() for line in (lines[:-1] if len(lines) > 1 else lines)]
    dims = Counter(len(fields) - 1 for fields in lines if len(fields) > 1 and _number(fields[-1]) is not None)
    return dims.most_common(1)[0][0] if dims else 0


# Text.


def _read_text(file: BufferedReader, head: bytes, number: int, dim: int, rows: _Rows, cancel: CancelToken) -> None:
    """Reads lines. head: what was read of them already; number: of its first line."""
    for lines in _blocks(file, head, rows.path, number):
        cancel.check()
        words: list[bytes] = []
        numbers: list[int] = []
        tails: list[bytes] = []
        for at, line in enumerate(lines, number):
            # A blank line is no row.
            if line := line.strip(b" \t\r\n"):
                word, _, tail = line.partition(b" ")
                # Most rows are a word, and dim numbers with a space between: nothing is split for them.
                if tail.count(b" ") != dim - 1 or b"\t" in line:
                    word, tail = _split(line, dim, f"{rows.path}:{at}")
                words.append(word)
                numbers.append(at)
                tails.append(tail)
        number += len(lines)
        if words:
            rows.add(words, numbers, _parse(tails, numbers, dim, rows.path))


def _blocks(file: BufferedReader, head: bytes, path: Path, number: int) -> Iterator[list[bytes]]:
    """Yields the lines of about _BLOCK bytes."""
    # Blocks of the file, each completed to a whole line.
    block = head
    while block:
        if not block.endswith(b"\n"):
            block += _read_line(file, path, number + block.count(b"\n"))
        lines = block.removesuffix(b"\n").split(b"\n")
        yield lines
        number += len(lines)
        block = file.read(_BLOCK)


def _split(line: bytes, dim: int, where: str) -> tuple[bytes, bytes]:
    """Returns a row's word, which may hold spaces, and its numbers with a space between.

    Raises: DataError where the row has too few fields, or too many that look like numbers of a vector.
    """
    fields = line.split()
    # What is between the word's first part and the last dim fields.
    extra = fields[1:-dim]
    # `New York 2` is a word; a number that is not whole belongs to a vector.
    ragged = extra and all(_number(one) is not None and not one.isdigit() for one in extra)
    if len(fields) <= dim or ragged:
        raise DataError(
            f"{where}: {len(fields) - 1} numbers behind the word {visible(fields[0].decode(errors='replace'))[:40]!r}, "
            f"where {dim} are expected; {_MEND}"
        )
    return b" ".join(fields[:-dim]), b" ".join(fields[-dim:])


def _parse(tails: list[bytes], numbers: list[int], dim: int, path: Path) -> NDArray[np.float32]:
    """The numbers of rows, each `x x x` → f32 [rows, dim]. Raises: DataError for what is no number."""
    import pyarrow as pa  # here, since it takes half a second
    import pyarrow.csv as csv

    names = [str(column) for column in range(dim)]
    try:
        # Three times as fast as NumPy's own parsers. It takes less for a number than Python does.
        table = csv.read_csv(
            pa.py_buffer(b"\n".join(tails) + b"\n"),
            csv.ReadOptions(column_names=names, use_threads=False, block_size=sum(map(len, tails)) + len(tails)),
            csv.ParseOptions(delimiter=" ", quote_char=False),
            csv.ConvertOptions(column_types=dict.fromkeys(names, pa.float32()), null_values=[]),
        )
        # A column for each number, as rows of one array.
        block_BD = np.stack([column.to_numpy() for column in table.columns], 1)
        if len(block_BD) == len(tails):
            return block_BD
    except pa.ArrowInvalid:
        pass
    # Arrow reads fewer spellings of a number than Python, and does not say which line is wrong: row by row.
    return np.array(
        [_floats(tail, dim, f"{path}:{number}") for tail, number in zip(tails, numbers, strict=True)], np.float32
    )


def _floats(tail: bytes, dim: int, where: str) -> list[float]:
    fields = tail.split()
    # By the one rule for numbers in users' files, which also says what is none.
    values = [_number(one) for one in fields]
    if None in values:
        wrong = visible(fields[values.index(None)].decode(errors="replace"))[:40]
        raise DataError(f"{where}: {wrong!r} is no number; {_MEND}")
    if len(fields) != dim:
        raise DataError(f"{where}: {len(fields)} numbers, where {dim} are expected; {_MEND}")
    return [math.nan if value is None else value for value in values]


# Binary.


def _read_binary(file: BufferedReader, head: bytes, count: int, dim: int, rows: _Rows, cancel: CancelToken) -> None:
    """Reads `count` rows of a binary file. head: what was read of them already."""
    buffer, at, size = head, 0, 4 * dim

    def fill() -> bool:
        """Reads more, and returns whether there was something."""
        nonlocal buffer, at
        cancel.check()
        more = file.read(_BLOCK)
        # What was parsed is dropped; the beginning of a row that goes on in the next block stays.
        buffer, at = buffer[at:] + more, 0
        return bool(more)

    words: list[bytes] = []
    vectors: list[bytes] = []

    def flush() -> None:
        if words:
            block_BD = np.frombuffer(b"".join(vectors), "<f4").astype(np.float32).reshape(-1, dim)
            rows.add(words, range(rows.read + 1, rows.read + 1 + len(words)), block_BD)
            words.clear()
            vectors.clear()

    for number in range(1, count + 1):
        # A row is whole when its space and all of its numbers are in the buffer.
        while (space := buffer.find(b" ", at)) < 0 or len(buffer) < space + 1 + size:
            # Rows are handed over before more is read: about a block of them is in memory.
            flush()
            # So long a word means that the rows are out of step.
            if (len(buffer) - at if space < 0 else space - at) > _LONGEST_WORD:
                raise DataError(f"{rows.path}:{number}: word {number:,} does not end; the header is wrong, or {_MEND}")
            if not fill():
                raise DataError(
                    f"{rows.path}:{number}: cut off within word {number:,} of {count:,}, or the header, which gives "
                    f"{dim} numbers, is wrong; {_MEND}"
                )
        words.append(buffer[at:space].lstrip(b"\n"))  # word2vec ends a row with a line feed, others with nothing
        at = space + 1 + size
        vectors.append(buffer[space + 1 : at])
    flush()
    # After the last row there may be line feeds and nothing else.
    rest = buffer[at:] + file.read(_HEAD)
    if rest.strip(b"\n"):
        raise DataError(
            f"{rows.path}:{count + 1}: bytes behind the {count:,} words of {dim} numbers that the header gives; {_MEND}"
        )
