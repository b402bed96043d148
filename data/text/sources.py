"""Raw text: files, folders and TFDS sets → lines with document borders → sentences, in bounded memory; or whole
documents, unchanged.

A text file (*.txt, or without a suffix) holds a sentence or a paragraph in each line and a blank line between
documents. Each row of a table with a column "text" (`data.text.json_rows`, `data.text.columnar`) is a document, whose
lines are its paragraphs, and each article of WikiExtractor (`data.text.wiki_extractor`). `data.text.tfds` describes
TFDS sets. Any file but a binary table may be compressed.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import ClassVar

from contexture.data import mirror
from contexture.data.errors import DataError, did_you_mean
from contexture.data.plain_files import (
    COLUMNAR,
    COMPRESSED,
    IN_FOLDERS,
    WHOLE,
    Seen,
    Span,
    check_content,
    check_plain,
    inner_suffix,
    is_compressed,
    open_plain,
)
from contexture.data.text import hub, tfds, wiki_extractor
from contexture.data.text.columnar import TEXT, Columnar, files_of, is_saved
from contexture.data.text.json_rows import json_objects
from contexture.data.text.lines import LONGEST_DOCUMENT, LONGEST_TEXT, line_blocks, lines, sentences, split_lines
from contexture.data.text.row_facts import FIELDS, RowFacts

_ROWS = (".jsonl", ".json", *COLUMNAR, wiki_extractor.BLOCKS)
_WANTED = {
    ".jsonl": 'every line of a *.jsonl is like {{"{column}": "…"}}',
    ".json": 'a *.json is an array of objects like {{"{column}": "…"}}',
}
_PLAIN = re.compile(r"|\.(txt|text|raw|tokens|md|\d+)|\.(txt|text|[a-z]{2})-\d+-of-\d+")
"""Suffixes of plain text, as the usual corpora have them: wiki.train.tokens, news.en-00001-of-00100, text8."""
_KNOWN = "*.txt, *.jsonl, *.json (also with .gz, .bz2, .xz or .zst), *.parquet, *.arrow and *.feather"
_END_OF_ROW = {".jsonl": b"\n", wiki_extractor.BLOCKS: wiki_extractor.END}
"""What each row ends with, in tables whose rows follow each other in their bytes."""
_TABLES = {
    ".tsv": "a table of examples",
    ".csv": "a table of examples",
    ".conll": "words with tags",
    ".conllu": "words with tags",
}
CHUNK = 1 << 16
"""Characters of a document after which `chunks` gives what it has, at the end of a line."""
_BATCH = 1 << 19
"""Characters that are given to a tokenizer at once."""
_BORDERLESS = 1 << 26
"""Bytes at a file's beginning that hold an empty line, if the file has documents."""
_PART, _LONGEST_PART = 1 << 14, 1 << 20
"""Characters that are encoded alone, and after which text without a safe place is cut anywhere."""


@dataclass(frozen=True)
class TextFile:
    """A file of text, or the folder of a data set that Hugging Face's `datasets` saved."""

    kind: ClassVar = "file"
    path: Path
    span: Span = WHOLE
    """The bytes that `documents` and `chunks` read; a file is cut between documents alone (`document_border`)."""
    column: str = TEXT
    """The column of the text in a table."""
    facts: RowFacts | None = field(default=None, compare=False, repr=False)
    """Gets what the rows of a table say of each document that `documents` and `chunks` have ended."""

    @property
    def name(self) -> str:
        # WikiExtractor's files have one name in several folders.
        if wiki_extractor.is_name(self.path):
            return f"{self.path.parent.name}/{self.path.name}"
        # A path like "." has no name of its own.
        return self.path.name or Path(os.path.realpath(self.path)).name

    @property
    def size(self) -> int:
        return sum(file.stat().st_size for file in files_of(self.path))

    @property
    def parts(self) -> tuple[tuple[str, int, int], ...]:
        """The parts that are read, as `tfds.Split.parts`: (file, first, end). A text file is read whole."""
        # One part each, from 0 to 1: two sources with the same file overlap.
        return tuple((os.path.realpath(file), 0, 1) for file in files_of(self.path))

    def __str__(self) -> str:
        return str(self.path)

    def documents(self, seen: Seen = len) -> Iterator[tuple[int, str]]:
        """Yields the lines as (line number, line without outer spaces); an empty line is a border between documents.

        Every byte on disk goes through `seen` as it is read; of a columnar file every text, as of a TFDS set. Memory is
        bounded by one line (of a *.txt it is cut at LONGEST_LINE bytes, of a *.jsonl it is one document), and by a
        record batch of a columnar file.

        Raises: DataError with file:line where a line is not UTF-8, or not an object with a "text".
        """
        if not self.has_rows:
            for first, block in line_blocks(self.path, seen, cut_long=True, span=self.span):
                yield from enumerate(map(str.strip, block), first)
            return
        for number, text, record in self.rows(seen):
            if self.facts is not None:
                try:
                    self.facts.begin(record, text)
                except DataError as error:
                    raise DataError(f"{self.path}:{number}: {error}") from None
            for paragraph in split_lines(text):
                # Only the end of a row is a border: blank lines within a text are none.
                if paragraph.strip():
                    yield number, paragraph.strip()
            if self.facts is not None:
                self.facts.end(record)
            yield number, ""

    def chunks(self, documents: str, seen: Seen = len) -> Iterator[str]:
        """Yields the text of the documents unchanged, in chunks to be joined; an empty one ends a document.

        A document of a *.txt is the whole file (`documents` is "files"), or the text between blank lines, which belong
        to none ("blank_lines"). Line ends stay as they are, \\r\\n too; only a byte order mark is dropped. Memory and
        `seen` as in `documents`.

        Raises: DataError as in `documents`.
        """
        if self.has_rows:
            for _, text, record in self.rows(seen):
                # A row without text gives no document, and so no end of one.
                if text:
                    yield text
                    if self.facts is not None:
                        self.facts.end(record)
                    yield ""
            return
        held: list[str] = []
        size = before = 0
        in_document = False
        # With one more of number 0, so that every piece has a successor, and the last one is known by it.
        pieces = chain(lines(self.path, seen, cut_long=True, span=self.span), [(0, "")])
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

    def can_be_cut(self, documents: str) -> bool:
        """Returns whether documents follow each other in the file's bytes. documents: as in `chunks`, or "lines", each
        of them one."""
        if is_compressed(self.path) or self.path.is_dir():
            return False
        # A row of a table of JSON is a document, and a line.
        if self.has_rows or documents != "blank_lines":
            return self._suffix in _END_OF_ROW or (not self.has_rows and documents == "lines")
        # A file of lines alone is one document: its borders would be looked for in all of it, each time.
        return self.document_border(1, most=_BORDERLESS) < min(self.size, _BORDERLESS)

    def document_border(self, at: int, lines: bool = False, most: int = sys.maxsize) -> int:
        """Returns the first place in a file that can be cut, from a byte on, at which a document (or a line) begins, or
        its end, or a place behind `most`.

        Not every border counts, only those that bytes show alone: in a *.jsonl the end of a line, in WikiExtractor's
        blocks that of an article, else an empty line.
        """
        marks = (_END_OF_ROW[self._suffix],) if self.has_rows else (b"\n",) if lines else (b"\n\n", b"\n\r\n")
        longest = max(map(len, marks))
        with open_plain(self.path) as file:
            # A mark may begin in front of the place.
            base = max(at - longest, 0)
            file.seek(base)
            held = b""
            while base < most and (piece := file.read(CHUNK)):
                held += piece
                ends = [
                    base + place + len(mark)
                    for mark in marks
                    if (place := held.find(mark, max(at - len(mark) - base, 0))) >= 0
                ]
                # The mark that ends first, of both kinds.
                if ends:
                    return min(ends)
                # The beginning of a mark is kept.
                base += max(len(held) - longest + 1, 0)
                held = held[-longest + 1 :] if longest > 1 else b""
            return file.tell()

    @property
    def has_rows(self) -> bool:
        """Returns whether the text is the column of a table."""
        return self.path.is_dir() or self._suffix in _ROWS

    @cached_property
    def _suffix(self) -> str:
        # Files of WikiExtractor have none: their first bytes say what they are, once.
        return inner_suffix(self.path) or wiki_extractor.kind_of(self.path)

    def rows(self, seen: Seen = len, others: Sequence[str] = FIELDS) -> Iterator[tuple[int, str, Mapping[str, object]]]:
        """Yields the rows of a table: number, text, and its other columns, those of `others` that it has among them."""
        # A binary table, or a folder of them.
        if self.path.is_dir() or self._suffix in COLUMNAR:
            yield from Columnar(self.path).texts(seen, self.column, others)
            return
        if self._suffix == wiki_extractor.BLOCKS:
            for article in wiki_extractor.articles(self.path, seen, self.span):
                yield article.line, article.text, {"id": article.id}
            return
        wanted = _WANTED[self._suffix].format(column=self.column)
        for number, record in json_objects(self.path, wanted, seen, self.span):
            # A column that another row has is a mistake of this row; one that is near in spelling, of the option.
            text = record.get(self.column)
            if not isinstance(text, str):
                near = did_you_mean(self.column, record) if self.column not in record else ""
                raise DataError(f'{self.path}:{number}: no "{self.column}" that is a string{near}; {wanted}')
            yield number, text, record


Source = TextFile | tfds.Split
"""Both have a name, a size in bytes, parts to compare two by, `documents` and `chunks`."""


def expand(paths: str | Path | Iterable[str | Path], what: str = "data.path", column: str = TEXT) -> list[Source]:
    """Files, folders and TFDS sets → the sources to read; of a folder, its sorted files of IN_FOLDERS, or
    WikiExtractor's.

    Args:
        paths: files, folders, addresses.
        what: the option that names them.
        column: the column of the text in tables.

    Raises: DataError naming a source that is missing, empty, of no known format, or given twice, and for a column where
    no source is a table.
    """
    paths = [paths] if isinstance(paths, str | Path) else list(paths)
    if not paths:
        raise DataError(f"{what} names no text; give a file, several, or a folder")
    sources = [source for path in paths for source in present(path, what, column)]
    # By files and rows, not by names: a link to a file is the same file.
    if twice := shared(sources):
        raise DataError(f"{twice}: {what} names this {twice.kind} twice; give every {twice.kind} once")
    if column != TEXT and not any(source.has_rows for source in sources):
        raise DataError(f"{sources[0]}: text-column {column} has no meaning for plain text; leave it out")
    _check_one_compression(sources, what)
    for source in sources:
        if not source.size:
            raise DataError(f"{source}: the file is empty; {what} wants text in UTF-8")
    return sources


def check_beginnings(sources: Iterable[Source]) -> None:
    """Reads the first lines of each text file, 64 Ki characters: another encoding, or a table without the column
    "text", shows there.

    Raises: DataError as `TextFile.documents`.
    """
    for source in sources:
        if not isinstance(source, TextFile) or source.path.is_dir() or inner_suffix(source.path) in COLUMNAR:
            continue
        size = 0
        for _, line in source.documents():
            size += len(line) + 1
            if size > CHUNK:
                break


def present(path: str | Path, what: str = "data.path", column: str = TEXT) -> list[Source]:
    """Returns the sources at a path. Raises: DataError where none exists, or it is no text. Arguments: as `expand`."""
    # Addresses first: they are no paths.
    if str(path).startswith(tfds.PREFIX):
        return [replace(tfds.open_split(str(path)), column=column)]
    if hub.is_address(path):
        return [source for file in hub.local_files(str(path)) for source in present(file, what, column)]
    path = Path(path)
    mirror.fetched(path)
    if path.is_file():
        _check_text(path, what)
        check_content(path)
        return [TextFile(path, column=column)]
    # Before the path is called missing: a pipe or a bucket has an error of its own.
    check_plain(path)
    if not path.is_dir():
        raise DataError(f"{path}: {what} names no such file or folder; check the path")
    # A saved data set is one source, whatever else its folder holds.
    if is_saved(path):
        files_of(path)  # says what is wrong with it
        return [TextFile(path, column=column)]
    # Sorted, so that the same folder is the same text on every machine.
    # *.json holds no text as often as not; a compressed one (C4's *.json.gz) is data.
    inside = sorted(
        p
        for p in path.iterdir()
        if (inner_suffix(p) in IN_FOLDERS or (inner_suffix(p) == ".json" and is_compressed(p))) and p.is_file()
    )
    inside = inside or wiki_extractor.files_in(path)
    # Shards without their index, or together with other paths: `prepared_at` takes a single folder.
    if not inside and (path / "sentences.bin").is_file():
        raise DataError(
            f"{path}: {what} holds shards, not text; give their folder alone, with the index.json that was "
            "written, or prepare the text again into another folder"
        )
    if not inside:
        kinds = f"{', '.join(f'*{suffix}' for suffix in IN_FOLDERS[:-1])} or *{IN_FOLDERS[-1]}"
        raise DataError(f"{path}: {what} is a folder without {kinds}; give text files or their folder")
    for file in inside:
        check_content(file)
    return [TextFile(file, column=column) for file in inside]


def check_plain_text(path: Path, what: str) -> None:
    """Raises: DataError for a file that is no plain text by its name or its first bytes. what: what each line holds."""
    suffix = inner_suffix(path)
    if not _PLAIN.fullmatch(suffix):
        raise DataError(f"{path}: *{suffix} is no plain text; give a *.txt with {what} in each line")
    check_content(path)


def _check_text(path: Path, what: str) -> None:
    """Raises: DataError for a table of examples, and for an unknown suffix."""
    # Tables would be read as text without an error, and a model be trained on tabs and labels.
    suffix = inner_suffix(path)
    if suffix in _TABLES:
        kind = _TABLES[suffix]
        train = f"contexture finetune RUN --task.kind {'tag' if 'conll' in suffix else 'classify'} --task.train {path}"
        raise DataError(
            f"{path}: {kind}, and {what} wants text; learn a task from it ({train}), or give the text alone, as *.txt "
            'or as *.jsonl with objects like {"text": "…"}'
        )
    if suffix not in _ROWS and not _PLAIN.fullmatch(suffix):
        check_content(path)  # knows more of archives
        near = did_you_mean(suffix, (".txt", *_ROWS, *COMPRESSED))
        raise DataError(f"{path}: *{suffix} is no known kind of text{near}; {what} reads {_KNOWN}; name text *.txt")


def _check_one_compression(sources: Sequence[Source], what: str) -> None:
    """Raises: DataError for a file together with its own compressed copy: the same text twice."""
    names: dict[str, Source] = {}
    for source in sources:
        plain = str(source)
        # "a.txt" and "a.txt.gz" have one name without the compression.
        if isinstance(source, TextFile) and is_compressed(plain):
            plain = os.path.splitext(plain)[0]
        if other := names.get(plain):
            raise DataError(f"{source}: {what} names {other.name} too, the same text by its name; keep one of them")
        names[plain] = source


def shared(sources: Sequence[Source]) -> Source | None:
    """Returns the later of two sources with a file, or rows of a TFDS set, in common; None where no two have any."""
    # Sorted by file and first row, parts that overlap are neighbours.
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
    lists of at most about half a million characters."""
    for block in _stripped_lines(source, seen):
        # An empty line is a border.
        if split:
            yield [*chain.from_iterable(sentences(line) if line else (None,) for line in block)]
        else:
            yield [line or None for line in block]


def _stripped_lines(source: Source, seen: Seen) -> Iterator[list[str]]:
    """Yields the lines of `source.documents`, in lists."""
    # No Python code for each line: some text has nothing else done to it than to be split into words.
    if isinstance(source, TextFile) and not source.has_rows:
        for _, block in line_blocks(source.path, seen, cut_long=True, span=source.span):
            yield [*map(str.strip, block)]
        return
    batch: list[str] = []
    size = 0
    for _, line in source.documents(seen):
        batch.append(line)
        # One more for each, so that borders bound a batch too.
        size += len(line) + 1
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    yield batch


def document_batches(
    source: Source, documents: str, cut: Callable[[str, int], list[str]], seen: Seen = len
) -> Iterator[list[str | None]]:
    """Yields a source's documents in parts that may be encoded alone, None after each document, in lists of about half
    a million characters.

    Args:
        source: the text.
        documents: what a document is (`data.documents`).
        cut: splits a text into such parts of about so many characters (`Tokenizer.split_long`).
        seen: gets all bytes as they are read.
    """
    batch: list[str | None] = []
    size, rest = 0, ""
    for chunk in source.chunks(documents, seen):
        # What was held back goes before the new text.
        parts: list[str | None] = [*cut(rest + chunk, _PART)] if rest or chunk else []
        rest = ""
        # The end of a document: nothing is held back across it.
        if not chunk:
            parts.append(None)
        # The last part is held back: the next chunk may go on within its last word.
        # A part of _LONGEST_PART without a safe place is given as it is, since memory must stay bounded.
        elif len(last := parts[-1] or "") < _LONGEST_PART:
            rest = last
            parts.pop()
        batch += parts
        size += len(chunk) + 1
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    yield batch


def lines_of(file: Path, what: str) -> Iterator[str]:
    """Yields the lines of a file, each `what`, without their ends.

    Raises: DataError for a file that cannot be read as text.
    """
    check_lines(file, what)
    file = hub.local_file(file)
    for _, line in lines(file, most=LONGEST_TEXT):
        yield line.rstrip("\r\n")


def check_lines(file: Path, what: str) -> None:
    """Raises: DataError for a file that is missing, or whose content is no text."""
    file = hub.local_file(file)
    check_plain(file)
    if not file.is_file():
        raise DataError(f"{file}: no such file; give one with {what} in each line")
    check_plain_text(file, what)


def documents_of(sources: Sequence[Source], documents: str, seen: Seen = len) -> Iterator[str]:
    """Yields the documents of sources, each whole. documents, seen: as in `Source.chunks`.

    Raises: DataError for a document that is too long.
    """
    for source in sources:
        parts: list[str] = []
        size = 0
        for chunk in source.chunks(documents, seen):
            # Counted before it is kept: a document that is too long is refused before it fills the memory.
            size += len(chunk)
            if size > LONGEST_DOCUMENT:
                raise DataError(
                    f"{source}: a document of more than {LONGEST_DOCUMENT:,} characters; put blank lines between "
                    "documents, with --documents blank_lines, or give several files"
                )
            if chunk:
                parts.append(chunk)
            elif parts:  # an empty chunk ends a document
                yield "".join(parts)
                parts, size = [], 0
        if parts:
            yield "".join(parts)
