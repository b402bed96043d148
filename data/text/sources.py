"""Raw text: files, folders and TFDS sets → lines with document borders → sentences, in bounded memory; or whole
documents, unchanged.

A text file (*.txt) holds a sentence or a paragraph in each line and a blank line between documents; a *.jsonl file
holds an object with "text" in each line, one document each, whose lines are its paragraphs. `data.text.tfds` describes
TFDS sets.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import ClassVar, TypeAlias

from contexture.data.errors import DataError
from contexture.data.plain_files import check_not_packed, check_plain, open_plain
from contexture.data.text import tfds
from contexture.data.text.sentences import sentences

KINDS = (".txt", ".jsonl")
_WANTED = 'every line of a *.jsonl is like {"text": "…"}'
_TABLES = {".tsv": "a table of examples", ".csv": "a table of examples", ".conll": "words with tags",
           ".conllu": "words with tags"}  # fmt: skip
LONGEST_LINE = 1 << 19
"""Bytes after which a line of a *.txt file is cut (at a space where it has one), so that no file need fit in memory."""
CHUNK = 1 << 16
"""Characters of a document after which `chunks` gives what it has, at the end of a line."""
_BATCH = 1 << 19
"""Characters that are given to a tokenizer at once."""
_PART, _LONGEST_PART = 1 << 14, 1 << 20
"""Characters that are encoded alone, and after which text without a safe place is cut anywhere."""
Seen: TypeAlias = Callable[[bytes], object]
"""Called with all bytes as they are read: a digest's update, a counter."""
JsonObject: TypeAlias = dict[str, object]


@dataclass(frozen=True)
class TextFile:
    """A file of text."""

    kind: ClassVar = "file"
    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    @property
    def parts(self) -> tuple[tuple[str, int, int], ...]:
        """The parts that are read, as `tfds.Split.parts`: (file, first, end). A text file is read whole."""
        return ((os.path.realpath(self.path), 0, 1),)

    def __str__(self) -> str:
        return str(self.path)

    def documents(self, seen: Seen = len) -> Iterator[tuple[int, str]]:
        """Yields the lines as (line number, line without outer spaces); an empty line is a border between documents.

        Every byte goes through `seen` as it is read, at most LONGEST_LINE at a time. Memory is bounded by one line:
        that of a *.txt is cut at LONGEST_LINE bytes, that of a *.jsonl is one document.

        Raises: DataError with file:line where a line is not UTF-8, or not an object with a "text".
        """
        if self.path.suffix != ".jsonl":
            for number, line in lines(self.path, seen, cut_long=True):
                yield number, line.strip()
            return
        for number, text in self._rows(seen):
            for paragraph in text.splitlines():
                if paragraph.strip():
                    yield number, paragraph.strip()
            yield number, ""

    def chunks(self, documents: str, seen: Seen = len) -> Iterator[str]:
        """Yields the text of the documents unchanged, in chunks to be joined; an empty one ends a document.

        A document of a *.txt is the whole file (`documents` is "files"), or the text between blank lines, which belong
        to none ("blank_lines"). Line ends stay as they are, \\r\\n too; only a byte order mark is dropped. Memory and
        `seen` as in `documents`.

        Raises: DataError as in `documents`.
        """
        if self.path.suffix == ".jsonl":
            for _, text in self._rows(seen):
                yield from (text, "") if text else ()
            return
        held: list[str] = []
        size = before = 0
        in_document = False
        pieces = chain(lines(self.path, seen, cut_long=True), [(0, "")])
        for (number, piece), (after, _) in pairwise(pieces):
            # A long line comes in pieces of one number. A piece is blank only as a whole line: white space in the
            # middle of a long line ends no document.
            whole_line = before != number != after
            before = number
            blank = documents == "blank_lines" and whole_line and not piece.strip()
            if not blank:
                held.append(piece)
                size += len(piece)
                in_document = True
            if held and (blank or not after or size >= CHUNK):
                yield "".join(held)
                held, size = [], 0
            if in_document and (blank or not after):
                yield ""
                in_document = False

    def _rows(self, seen: Seen) -> Iterator[tuple[int, str]]:
        """Yields the texts of a *.jsonl file with their line numbers."""
        for number, record in json_lines(self.path, _WANTED, seen):
            text = record.get("text")
            if not isinstance(text, str):
                raise DataError(f'{self.path}:{number}: no "text" that is a string; {_WANTED}')
            yield number, text


Source = TextFile | tfds.Split
"""Both have a name, a size in bytes, parts to compare two by, `documents` and `chunks`."""


def expand(paths: str | Path | Iterable[str | Path], what: str = "data.path") -> list[Source]:
    """Files, folders and TFDS sets → the sources to read; a folder stands for its sorted *.txt and *.jsonl.

    Raises: DataError naming a source that is missing, empty, or given twice.
    """
    paths = [paths] if isinstance(paths, str | Path) else list(paths)
    if not paths:
        raise DataError(f"{what} names no text; give a file, several, or a folder")
    sources = [source for path in paths for source in present(path, what)]
    if twice := shared(sources):
        raise DataError(f"{twice}: {what} names this {twice.kind} twice; give every {twice.kind} once")
    for source in sources:
        if not source.size:
            raise DataError(f"{source}: the file is empty; {what} wants text in UTF-8")
    return sources


def present(path: str | Path, what: str = "data.path") -> list[Source]:
    """Returns the sources at a path. Raises: DataError where none exists, or it is no text."""
    if str(path).startswith(tfds.PREFIX):
        return [tfds.open_split(str(path))]
    path = Path(path)
    if path.is_file():
        _check_text(path, what)
        return [TextFile(path)]
    check_plain(path)
    if not path.is_dir():
        raise DataError(f"{path}: {what} names no such file or folder; check the path")
    # Sorted, so that the same folder is the same text on every machine.
    inside = sorted(p for p in path.iterdir() if p.suffix in KINDS and p.is_file())
    if not inside and (path / "sentences.bin").is_file():
        raise DataError(
            f"{path}: {what} holds shards, not text; give their folder alone, with the index.json that was "
            "written, or prepare the text again into another folder"
        )
    if not inside:
        raise DataError(f"{path}: {what} is a folder without *.txt or *.jsonl; give text files or their folder")
    for file in inside:
        check_not_packed(file)
    return [TextFile(file) for file in inside]


def _check_text(path: Path, what: str) -> None:
    """Raises: DataError for a compressed file, and for a table of examples."""
    # Tables would be read as text without an error, and a model be trained on tabs and labels.
    check_not_packed(path)
    suffix = path.suffix.lower()
    if suffix in _TABLES:
        kind = _TABLES[suffix]
        train = f"contexture finetune RUN --task.kind {'tag' if 'conll' in suffix else 'classify'} --task.train {path}"
        raise DataError(
            f"{path}: {kind}, and {what} wants text; learn a task from it ({train}), or give the text alone, as *.txt "
            'or as *.jsonl with objects like {"text": "…"}'
        )


def shared(sources: Sequence[Source]) -> Source | None:
    """Returns the later of two sources with a file, or rows of a TFDS set, in common; None where no two have any."""
    # Sorted by file and first row, parts that overlap stand next to each other.
    parts = sorted((*part, place) for place, source in enumerate(sources) for part in source.parts)
    for (file, _, end, place), (other, start, _, next_place) in pairwise(parts):
        if file == other and start < end:
            return sources[max(place, next_place)]
    return None


def texts(sources: Iterable[Source]) -> Iterator[str]:
    """Yields all lines of the sources without borders, for learning a vocabulary of sentences."""
    for source in sources:
        for _, line in source.documents():
            if line:
                yield line


def whole_texts(sources: Iterable[Source], documents: str) -> Iterator[str]:
    """Yields all text of the sources with its line ends, in chunks, for learning a vocabulary of whole documents."""
    for source in sources:
        for chunk in source.chunks(documents):
            if chunk:
                yield chunk


def sentence_batches(source: Source, split: bool, seen: Seen = len) -> Iterator[list[str | None]]:
    """Yields a source's sentences (its lines, unless they are to be split), None for a border between documents, in
    lists of about half a million characters."""
    batch: list[str | None] = []
    size = 0
    for _, line in source.documents(seen):
        for text in (sentences(line) if split else [line]) if line else [None]:
            batch.append(text)
            size += len(text or "") + 1
            if size >= _BATCH:
                yield batch
                batch, size = [], 0
    yield batch


def document_batches(
    source: Source, documents: str, cut: Callable[[str, int], list[str]], seen: Seen = len
) -> Iterator[list[str | None]]:
    """Yields a source's documents in parts that may be encoded alone, None after each document, in lists of about half
    a million characters. cut: splits a text into such parts of about so many characters (`Tokenizer.split_long`)."""
    batch: list[str | None] = []
    size, rest = 0, ""
    for chunk in source.chunks(documents, seen):
        parts: list[str | None] = [*cut(rest + chunk, _PART)] if rest or chunk else []
        rest = ""
        if not chunk:
            parts.append(None)
        # The last part is held back: the next chunk may go on within its last word.
        elif len(last := parts[-1] or "") < _LONGEST_PART:
            rest = last
            parts.pop()
        batch += parts
        size += len(chunk) + 1
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    yield batch


def json_lines(path: Path, expected: str, seen: Seen = len) -> Iterator[tuple[int, JsonObject]]:
    """Yields the objects of a *.jsonl file with their line numbers; blank lines are left out.

    Raises: DataError with file:line where a line is not UTF-8, no JSON, or no object; `expected` ends its message.
    """
    for number, record in json_records(path, expected, seen):
        if isinstance(record, DataError):
            raise record
        yield number, record


def json_records(path: Path, expected: str, seen: Seen = len) -> Iterator[tuple[int, JsonObject | DataError]]:
    """As `json_lines`, but a line that is not UTF-8, no JSON or no object comes as the DataError that names it."""
    for number, line, wrong in decoded_lines(path, seen):
        if line.strip():
            yield number, wrong or _record(line, f"{path}:{number}", expected)


def _record(line: str, at: str, expected: str) -> JsonObject | DataError:
    try:
        record = json.loads(line)
        # Half a character can only be written as an escape; it would fail much later, where text is encoded.
        json.dumps(record, ensure_ascii=False).encode() if "\\u" in line else None
    except UnicodeEncodeError:
        return DataError(f"{at}: half a character (a lone \\ud800-\\udfff); {expected}")
    except RecursionError:
        return DataError(f"{at}: not JSON (nested too deep); {expected}")
    except ValueError as error:
        return DataError(f"{at}: not JSON ({getattr(error, 'msg', error)}); {expected}")
    return record if isinstance(record, dict) else DataError(f"{at}: no object; {expected}")


def lines(path: Path, seen: Seen = len, cut_long: bool = False) -> Iterator[tuple[int, str]]:
    """Yields the lines of a file in UTF-8, with their ends, each with its number. Raises: DataError for a line that is
    not UTF-8."""
    for number, line, wrong in decoded_lines(path, seen, cut_long):
        if wrong:
            raise wrong
        yield number, line


def decoded_lines(path: Path, seen: Seen = len, cut_long: bool = False) -> Iterator[tuple[int, str, DataError | None]]:
    """Yields (number, line, error): as `lines`, but a line that is not UTF-8 comes with the DataError that names it,
    its other characters intact."""
    for number, raw in _raw_lines(path, seen, cut_long):
        try:
            yield number, raw.decode("utf-8"), None
        except UnicodeDecodeError as error:
            column = len(raw[: error.start].decode("utf-8")) + 1
            where = f"byte 0x{raw[error.start]:02x} at column {column}"
            wrong = DataError(f"{path}:{number}: not UTF-8 ({where}); save the file as UTF-8")
            yield number, raw.decode("utf-8", "replace"), wrong


def _raw_lines(path: Path, seen: Seen, cut_long: bool) -> Iterator[tuple[int, bytes]]:
    """Yields lines as bytes, each with its number. cut_long: a line over LONGEST_LINE comes in pieces, cut at a space,
    or at a whole character."""
    limit = LONGEST_LINE
    with open_plain(path) as file:
        number, rest, first = 1, bytearray(), True
        while piece := file.readline(limit):
            seen(piece)
            if first:  # a byte order mark
                piece, first = piece.removeprefix(b"\xef\xbb\xbf"), False
            rest += piece
            if rest.endswith(b"\n"):
                yield number, bytes(rest)
                rest = bytearray()
                number += 1
            elif cut_long and len(rest) >= limit:
                raw = bytes(rest)
                # Behind the last space (not one at the very beginning, which would leave an empty piece); where there
                # is none, in front of a character that is not whole: back over the 10xxxxxx bytes to its first one.
                cut = raw.rfind(b" ", 1) + 1
                if not cut:
                    cut = len(raw)
                    while cut > len(raw) - 4 and raw[cut - 1] & 0xC0 == 0x80:
                        cut -= 1
                    cut = cut - 1 if raw[cut - 1] >= 0xC0 else cut
                rest = bytearray(raw[cut:])
                yield number, raw[:cut]
        if rest:
            yield number, bytes(rest)
