"""Raw text → parts that are clean but for duplicates, which all parts together show (`data.cleaning.join_cleaned`).

A part is a folder:

    text.jsonl       its documents that no rule has refused, {"text", "number", "id", "language"} a line; the number is
                     that within the part of the source
    ends.bin         i64, where each of these lines ends
    documents.bin    with --duplicates documents: 16 bytes of each text's digest
    paragraphs.bin   with --duplicates paragraphs: 16 bytes of each paragraph's digest
    counts.bin       i64, how many paragraphs each document has
    signatures.bin   with --duplicates near: u32 [documents, 128], MinHash
    part.json        the job, what was read of each source, what each rule took, size and sha256 of the files
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from contexture.data import mirror
from contexture.data.binary_files import HashingWriter, Int64Writer, close_all
from contexture.data.cleaning import c4, gopher
from contexture.data.cleaning.config import CleanConfig
from contexture.data.cleaning.contamination import Benchmarks
from contexture.data.cleaning.documents import Document, documents
from contexture.data.cleaning.join_cleaned import Report, join, read_part
from contexture.data.cleaning.languages import Languages
from contexture.data.cleaning.near_duplicates import MinHash
from contexture.data.cleaning.rules import CONTAMINATED, LANGUAGE, Count, Removed, lines_of, size
from contexture.data.errors import DataError
from contexture.data.plain_files import WHOLE
from contexture.data.pretraining import part_workers, text_parts
from contexture.data.pretraining.part_folder import new_part, part_name, with_parts, write_index
from contexture.data.pretraining.part_workers import Tally, make_in_workers
from contexture.data.pretraining.text_parts import PartedText, PartSpan, digest_of_ends
from contexture.data.storage import check_free
from contexture.data.text.sources import Source, TextFile, expand
from contexture.data.text.sources import lines_of as lines_of_file

_OF_DUPLICATES = {"documents": "documents.bin", "paragraphs": "paragraphs.bin", "near": "signatures.bin"}


@dataclass(frozen=True)
class Cleaning(PartedText):
    """A cleaning: what all of its parts have in common."""

    config: CleanConfig

    @property
    def sources(self) -> list[Source]:
        return self._sources

    @cached_property
    def _sources(self) -> list[Source]:
        # Looked at once: parts are cut by their sizes.
        return expand(self.config.input, "input", self.config.text_column)

    @property
    def documents(self) -> str:
        return self.config.documents

    @cached_property
    def languages(self) -> Languages | None:
        """Returns what tells languages apart; None where a column does, or none are asked for."""
        # A column needs no library.
        if not self.config.languages or self.config.language_column:
            return None
        languages = Languages()
        languages.check(self.config.languages)
        return languages

    @cached_property
    def benchmarks(self) -> Benchmarks | None:
        files = self.config.decontaminate
        return Benchmarks(files, self.config.decontaminate_ngram) if files else None

    @cached_property
    def minhash(self) -> MinHash | None:
        return MinHash() if "near" in self.config.duplicates else None

    @cached_property
    def bad_words(self) -> list[str]:
        return list(lines_of_file(Path(self.config.bad_words), "a word")) if self.config.bad_words else []

    @cached_property
    def facts(self) -> dict[str, object]:
        """Everything that the result depends on, as JSON; of a source a digest of its ends, since it may be large."""
        config = self.config
        return {
            "documents": config.documents,
            "text_column": config.text_column,
            "languages": sorted(set(config.languages)),
            "language_column": config.language_column,
            "language_model": self.languages.version if self.languages else "",
            "rules": sorted(set(config.rules)),
            "bad_words": hashlib.sha256("\n".join(self.bad_words).encode()).hexdigest() if self.bad_words else "",
            "decontaminate": [Path(file).name for file in config.decontaminate],
            # Of the texts, and not of the files: another copy of a file is the same.
            "benchmarks": self.benchmarks.fingerprint if self.benchmarks else "",
            "decontaminate_ngram": config.decontaminate_ngram if self.benchmarks else 0,
            "duplicates": sorted(set(config.duplicates)),
            "near_threshold": float(config.near_threshold) if self.minhash else 0.0,
            "minhash": self.minhash.version if self.minhash else "",
            "piece": text_parts.PIECE,
            "sources": [{"name": each.name, "size": each.size, "ends": digest_of_ends(each)} for each in self.sources],
        }

    def checked(self, document: Document) -> tuple[str, str, list[Removed]]:
        """Returns what is left of a document, "" for nothing, its language, and what the rules took of it."""
        text, config = document.text, self.config
        # In the order of `rules.ORDER`: a later rule sees what the earlier ones have left.
        language = document.language or (self.languages.of(text) if self.languages else "")
        if config.languages and language not in config.languages:
            return "", language, [Removed(LANGUAGE, text, size(text), "document")]
        # C4 takes lines, and the rules behind it read what is left of a document.
        removed: list[Removed] = []
        if "c4" in config.rules:
            text, removed = c4.clean(text, self._bad_words)
        if text and "gopher" in config.rules and (rule := gopher.refused(text)):
            removed.append(Removed(rule, text, size(text), "document"))
            text = ""
        # What its n-gram is, and of which file, in place of its beginning.
        if text and self.benchmarks and (found := self.benchmarks.found_in(text)):
            removed.append(Removed(CONTAMINATED, f"{found[1]}: {found[0]}", size(text), "document"))
            text = ""
        return text, language, removed

    @cached_property
    def _bad_words(self) -> Any:
        return c4.bad_words_pattern(self.bad_words)


def clean(
    config: CleanConfig,
    to: str | Path,
    progress: Callable[[int, int], None] | None = None,
    *,
    workers: int = 1,
    tally: Tally | None = None,
) -> Report:
    """Cleans text into the folder `to`: the documents that stay as *.jsonl, and what each rule took in report.json.

    The folder appears when it is whole, the same byte for byte with any number of workers and of parts. Parts that are
    done stay next to it where the work is stopped, and the same call resumes with them.

    Args:
        config: the text, and the rules.
        to: the new folder.
        progress: called with the bytes read and the bytes in all, at least every half megabyte; an exception that it
            raises stops the work.
        workers: how many processes clean.
        tally: gets what was read so far, before `progress` is called.

    Raises: DataError for text and files that cannot be read, a language that is not known, a library that is not
    installed, a folder that is taken, and where nothing is left.
    """
    # Before anything is read: cleaning may take hours, and the folder may be taken.
    check_free(Path(to))
    job, to, tally = Cleaning(config), Path(os.path.realpath(to)), tally or Tally(0)
    tally.total = sum(source.size for source in job.sources)

    def report(read: int, documents: int, tokens: int) -> None:
        tally.add(read, documents, tokens)
        if progress:
            progress(tally.read, tally.total)

    # By the text alone: as many as before a kill, with any number of workers.
    count = job.part_count()

    def make(parts: Path) -> Report:
        if min(workers, count) > 1:
            maker = CleanParts(config, str(parts), count, text_parts.PIECE)
            make_in_workers(maker, parts, count, min(workers, count), report, tally)
        else:
            for part in range(count):
                clean_part(job, parts, part, count, report)
        return join(parts, to, check=lambda: report(0, 0, 0))

    return with_parts(to, job.facts, make)


@dataclass(frozen=True)
class CleanParts:
    """Makes the parts of a cleaning, as a worker opens them."""

    config: CleanConfig
    folder: str
    count: int
    piece: int

    def open(self) -> Callable[[int, part_workers.Report], None]:
        # A worker is a fresh process: what tests have changed is changed again.
        text_parts.PIECE = self.piece
        job = Cleaning(self.config)
        return lambda part, report: clean_part(job, Path(self.folder), part, self.count, report)


def clean_part(job: Cleaning, folder: Path, part: int, count: int, report: part_workers.Report) -> None:
    """Cleans a part of a text into a folder of its own below `folder`, unless it is there already.

    Args:
        job: the cleaning.
        folder: where its parts lie.
        part: the number of the part, from 0.
        count: how many parts there are.
        report: called at least every half megabyte.

    Raises: DataError for text that cannot be read, and where another job's part is there.
    """
    place = folder / part_name(part, count)
    mirror.fetched(place)
    spans = job.spans(part, count)
    if place.is_dir():
        index = read_part(place, job.facts)
        # Its text counts as read.
        report(sum(span.end - span.start for span in spans), sum(each["documents"] for each in index["spans"]), 0)
        return
    with new_part(place, lambda: read_part(place, job.facts)) as partial:
        writer = _PartWriter(partial, job)
        try:
            for span in spans:
                writer.add(span, report)
            writer.finish(part, count)
        except BaseException:
            close_all(writer.files.values())
            raise


class _PartWriter:
    """The folder of a part while it is written."""

    def __init__(self, folder: Path, job: Cleaning) -> None:
        self.folder, self.job = folder, job
        # Digests of what is asked alone: signatures take as long as all rules.
        asked = set(job.config.duplicates)
        self.files: dict[str, HashingWriter] = {"text.jsonl": HashingWriter(folder / "text.jsonl")}
        self._ends = Int64Writer(folder / "ends.bin")
        self._counts = Int64Writer(folder / "counts.bin")
        self.files |= {"ends.bin": self._ends, "counts.bin": self._counts}
        for name, kind in (
            ("documents.bin", "documents"),
            ("paragraphs.bin", "paragraphs"),
            ("signatures.bin", "near"),
        ):
            if kind in asked:
                self.files[name] = HashingWriter(folder / name)
        self._end = 0
        self._spans: list[Mapping[str, int]] = []
        self._removed: dict[str, Count] = {}

    def add(self, span: PartSpan, report: part_workers.Report) -> None:
        """Cleans the documents that begin in a span. report: as in `clean_part`."""
        source = self.job.open(span)
        # In a part of a long document none may begin.
        # Documents are numbered within the span: how many are in front, the join knows.
        number = kept = read = said = 0
        how, column = self.job.config.documents, self.job.config.language_column
        try:
            for document in documents(source, how, column, lambda raw: report(len(raw), 0, 0)) if source else ():
                number += 1
                read += size(document.text)
                text, language, removed = self.job.checked(document)
                for each in removed:
                    where = {"source": span.source, "number": number}
                    self._removed.setdefault(each.rule, Count()).add(each, where)
                # What a rule has refused is counted, and nowhere in the part.
                if text:
                    self._write(document._replace(text=text, language=language), number)
                    kept += 1
                # Now and then: a file may have millions.
                if number - said >= 256:
                    report(0, number - said, 0)
                    said = number
        except DataError:
            _name_line(source, how, column)
            raise
        report(0, number - said, 0)
        self._spans.append({"source": span.source, "documents": number, "bytes": read, "kept": kept})

    def _write(self, document: Document, number: int) -> None:
        # Digests are of the text that stays: two pages may differ in lines that have gone.
        text, files = document.text, self.files
        row: dict[str, object] = {"text": text, "number": number}
        # Where a document has neither, nothing is said of it.
        row |= {} if document.id is None else {"id": document.id}
        row |= {"language": document.language} if document.language else {}
        row |= {"subset": document.subset} if document.subset else {}
        # Without escapes: text stays readable, and the file as large as the text.
        line = f"{json.dumps(row, ensure_ascii=False)}\n".encode()
        self._end += len(line)
        files["text.jsonl"].write(line)
        self._ends.add(self._end)
        if "documents.bin" in files:
            files["documents.bin"].write(_digest(text))
        if "paragraphs.bin" in files:
            # Outer spaces tell no paragraphs apart.
            paragraphs = [paragraph for line in lines_of(text) if (paragraph := line.strip())]
            files["paragraphs.bin"].write(b"".join(map(_digest, paragraphs)))
            self._counts.add(len(paragraphs))
        if self.job.minhash:
            files["signatures.bin"].write(self.job.minhash.signature(text))

    def finish(self, part: int, count: int) -> None:
        """Writes the rest of the folder."""
        self._ends.flush()
        self._counts.flush()
        # Closed before the index is written: a full disk shows here, when the last bytes are written.
        close_all(self.files.values())
        write_index(
            self.folder,
            {
                "job": self.job.facts,
                "part": part,
                "of": count,
                "spans": self._spans,
                "removed": {rule: vars(each) for rule, each in self._removed.items()},
                "files": {name: file.entry() for name, file in self.files.items()},
            },
        )


def _digest(text: str) -> bytes:
    """Returns 16 bytes of a text's digest: two of 10^12 texts share one with a probability of 10^-15."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _name_line(source: Source | None, how: str, column: str) -> None:
    """Reads a file from its beginning: the line of an error is counted from where the part begins."""
    if isinstance(source, TextFile) and source.span[0]:
        for _ in documents(dataclasses.replace(source, span=WHOLE), how, column, len):
            pass
