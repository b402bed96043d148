"""Parts of a cleaning (`data.cleaning.clean_parts`) → a folder of text without duplicates, and a report: the same, byte
for byte, however many parts."""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, cast

import numpy as np

from contexture.data.binary_files import FileEntry, check_bytes
from contexture.data.cleaning.kept_documents import KeptDocuments
from contexture.data.cleaning.near_duplicates import Signatures, near_duplicates
from contexture.data.cleaning.repeated import Paragraphs, first_equal
from contexture.data.cleaning.rules import (
    C4_RULES,
    CONTAMINATED,
    DOCUMENTS,
    EXAMPLES,
    GOPHER_RULES,
    LANGUAGE,
    NEAR,
    ORDER,
    PARAGRAPHS,
    Count,
    Removed,
    lines_of,
    size,
    without,
)
from contexture.data.errors import DataError
from contexture.data.pretraining.part_folder import PartError, parts_in, read_index
from contexture.data.storage import atomic_folder

REPORT = "report.json"
FILE_BYTES = 1 << 28
"""Bytes of a file of text, after which the next one begins."""
_SPAN = {"source": int, "documents": int, "bytes": int, "kept": int}
_INDEX = {"job": dict, "part": int, "of": int, "spans": [_SPAN], "removed": dict, "files": dict}
"""The type of everything in part.json."""
_KINDS = {DOCUMENTS: "documents", NEAR: "near", PARAGRAPHS: "paragraphs"}
"""The rules for duplicates, by their words of --duplicates."""
Check = Callable[[], object]


class PartIndex(TypedDict):
    """The content of part.json."""

    job: dict[str, Any]
    part: int
    of: int
    spans: list[dict[str, int]]
    removed: dict[str, dict[str, Any]]
    files: dict[str, FileEntry]


class Report(TypedDict):
    """The content of report.json."""

    settings: dict[str, Any]
    sources: list[dict[str, Any]]
    documents: int
    bytes: int
    kept_documents: int
    kept_bytes: int
    rules: dict[str, dict[str, Any]]
    """What each rule took, in the order in which they are asked: documents, paragraphs, bytes, examples."""


def read_part(folder: Path, job: Mapping[str, object] | None = None) -> PartIndex:
    """Returns the content of a part's part.json. Raises: DataError where it is none, damaged, or of another job."""
    return cast(PartIndex, read_index(folder, _INDEX, job))


def join(folder: Path, to: Path, check: Check = lambda: None) -> Report:
    """Joins the parts in a folder into a folder of text at `to`, which appears when it is whole.

    Args:
        folder: holds the parts.
        to: the new folder.
        check: called between two pieces of the work, which it may stop by an exception.

    Raises: DataError for a part that is missing, damaged or of another job, a folder that is taken, and where no
    document is left.
    """
    # Every byte is looked at before anything is written: parts come from many machines.
    parts = parts_in(folder, read_part)
    for place, index in parts:
        for name, entry in index["files"].items():
            try:
                check_bytes(place / name, entry["sha256"], f"delete {place}, and make the part again")
            except DataError as error:
                raise PartError(str(error)) from None
            check()
    with atomic_folder(to) as partial:
        # Its files are closed before the folder gets its name.
        with KeptDocuments(parts) as documents:
            report = _Joining(parts, documents, check).write(partial)
        if not report["kept_documents"]:
            raise DataError(_nothing_left(report))
        (partial / REPORT).write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return report


def _nothing_left(report: Report) -> str:
    if not report["documents"]:
        return f"{report['sources'][0]['name']}: no document in the text; it wants text in UTF-8"
    # The rules that took most, so that the user sees which to leave out.
    taken = sorted(report["rules"].items(), key=lambda rule: -rule[1]["documents"])
    most = ", ".join(f"{name} took {count['documents']:,}" for name, count in taken[:3] if count["documents"])
    return f"{report['sources'][0]['name']}: of {report['documents']:,} documents none is left ({most}); ask less"


def _counts_of(parts: Sequence[tuple[Path, PartIndex]]) -> dict[str, Count]:
    """Returns what the parts have removed, by the rules that were asked, in their order."""
    job = parts[0][1]["job"]
    asked = {LANGUAGE: job["languages"], CONTAMINATED: job["decontaminate"]}
    asked |= dict.fromkeys(C4_RULES, "c4" in job["rules"]) | dict.fromkeys(GOPHER_RULES, "gopher" in job["rules"])
    asked |= {name: kind in job["duplicates"] for name, kind in _KINDS.items()}
    # Without a list the rule is not asked.
    asked["c4-bad-words"] = asked["c4-bad-words"] and job["bad_words"]
    # Rules that took nothing are in the report too: they were asked.
    counts = {rule: Count() for rule in ORDER if asked[rule]}
    before = [0] * len(job["sources"])
    for _, index in parts:
        for rule, count in index["removed"].items():
            # A part knows how many documents of a source are in front of one within the part alone.
            for example in count["examples"]:
                example["number"] += before[example["source"]]
                example["source"] = job["sources"][example["source"]]["name"]
            counts[rule].join(count)
        for span in index["spans"]:
            before[span["source"]] += span["documents"]
    return counts


class _Joining:
    """All parts together: which of their documents and paragraphs are duplicates, and what is written."""

    def __init__(self, parts: Sequence[tuple[Path, PartIndex]], documents: KeptDocuments, check: Check) -> None:
        self._parts, self._documents, self._check = parts, documents, check
        self._job = parts[0][1]["job"]
        self._removed = _counts_of(parts)
        # The document that each one doubles, or -1.
        # Exact duplicates first: a document that has gone is compared with no other.
        self._twins = np.full(len(documents), -1, np.int64)
        if DOCUMENTS in self._removed:
            firsts = first_equal(documents.numbers("documents.bin", "<u8", 2))
            self._twins = np.where(firsts == np.arange(len(firsts)), -1, firsts)
        self._exact = self._twins >= 0
        check()
        # Then near ones, of what is left, and paragraphs of what is left then.
        if NEAR in self._removed:
            self._add_near()
        # Which paragraphs go, and the document that has the first one that equals each of the first of them.
        self._gone, self._examples = np.zeros(0, np.bool_), dict[int, int]()
        self._counts = documents.numbers("counts.bin", "<i8")
        if PARAGRAPHS in self._removed:
            self._find_paragraphs()

    def _add_near(self) -> None:
        files = [place / "signatures.bin" for place in self._documents.folders]
        signatures = Signatures(files, self._documents.of_part)
        twins = near_duplicates(
            signatures,
            ~self._exact,
            lambda document: self._documents.row(document)["text"],
            self._job["near_threshold"],
            self._check,
        )
        # An array for both kinds: they exclude each other.
        self._twins[list(twins)] = list(twins.values())

    def _find_paragraphs(self) -> None:
        files = [place / "paragraphs.bin" for place in self._documents.folders]
        paragraphs = Paragraphs(files, np.repeat(self._twins < 0, self._counts))
        # A byte a paragraph, for the whole text.
        self._gone = paragraphs.repeated()
        firsts = paragraphs.firsts(np.flatnonzero(self._gone)[:EXAMPLES].tolist())
        ends = np.cumsum(self._counts)
        self._examples = {place: int(np.searchsorted(ends, first, "right")) for place, first in firsts.items()}

    def write(self, folder: Path) -> Report:
        """Writes the documents that stay, and returns what was done."""
        texts = _TextFiles(folder)
        paragraph = 0
        with contextlib.closing(texts):
            # In the order of the text, so that the first examples are the first ones.
            for document, row in enumerate(self._documents.rows()):
                self._check()
                twin = int(self._twins[document])
                if twin >= 0:
                    rule = DOCUMENTS if self._exact[document] else NEAR
                    removed = Removed(rule, row["text"], size(row["text"]), "document")
                    self._removed[rule].add(removed, {**_where(row), "doubles": _where(self._documents.row(twin))})
                # Paragraphs are numbered through, those of documents that have gone among them.
                if len(self._counts):
                    if twin < 0:
                        row["text"] = self._without_repeated(row, paragraph)
                    paragraph += int(self._counts[document])
                if twin < 0 and row["text"]:
                    texts.write(row)
        return {
            "settings": {name: value for name, value in self._job.items() if name != "sources"},
            "sources": [
                {"name": source["name"], "size": source["size"], "documents": read}
                for source, read in zip(self._job["sources"], self._documents.read, strict=True)
            ],
            "documents": sum(self._documents.read),
            "bytes": sum(span["bytes"] for _, index in self._parts for span in index["spans"]),
            "kept_documents": texts.documents,
            "kept_bytes": texts.bytes,
            "rules": {rule: vars(count) for rule, count in self._removed.items()},
        }

    def _without_repeated(self, row: Mapping[str, Any], first: int) -> str:
        """Returns the text of a document, whose paragraphs have numbers from `first` on, without those that go."""
        lines = lines_of(row["text"])
        # Blank lines are no paragraphs, and stay.
        numbers = [number for number, line in enumerate(lines) if line.strip()]
        gone = {number: place for place, number in enumerate(numbers, first) if self._gone[place]}
        text, sizes = without(lines, gone)
        count = self._removed[PARAGRAPHS]
        for number, place in gone.items():
            where = _where(row)
            if place in self._examples:
                where["doubles"] = _where(self._documents.row(self._examples[place]))
            count.add(Removed(PARAGRAPHS, lines[number], sizes[number], "paragraph"), where)
        # Of blank lines alone nothing is left.
        if len(gone) == len(numbers):
            count.documents += 1
            count.bytes += size(text)
            return ""
        return text


def _where(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"source": row["source"], "number": row["number"]}


class _TextFiles:
    """text-00000.jsonl and so on, each with FILE_BYTES or a little more."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._file, self._room = folder, None, 0
        self._files = self.documents = self.bytes = 0

    def write(self, row: Mapping[str, Any]) -> None:
        # By size: as many files whatever the number of parts.
        if self._file is None or self._room <= 0:
            self.close()
            self._file = (self._folder / f"text-{self._files:05d}.jsonl").open("wb")
            self._files, self._room = self._files + 1, FILE_BYTES
        line = f"{json.dumps(row, ensure_ascii=False)}\n".encode()
        self._file.write(line)
        self._room -= len(line)
        self.documents += 1
        self.bytes += size(row["text"])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
