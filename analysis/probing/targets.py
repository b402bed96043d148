"""Labelled spans to probe a model with, read from files (Tenney et al. 2019a, section 3, table 1).

| task         | files                      | a target                              | its label                        |
|--------------|----------------------------|---------------------------------------|----------------------------------|
| pos          | *.conllu, *.up, *.conll    | each word                             | its part of speech               |
| dependencies | *.conllu, *.up             | each word's head, and the word itself | the relation                     |
| entities     | *.conll                    | the words of an entity                | its type                         |
| srl          | *.up, *.conllu             | a predicate, and an argument's head   | the role                         |
| coreference  | *.tsv (GAP)                | a pronoun, and a name                 | `coreferent`, or none            |
| any name     | *.jsonl (jiant's edges)    | `span1`, and `span2` in pairs         | `label`: one, or a list of any   |
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from contexture.analysis.probing.span_objects import read_objects
from contexture.analysis.probing.target_types import Sentence, Span, Target
from contexture.data.errors import DataError, did_you_mean
from contexture.data.plain_files import check_content, inner_suffix
from contexture.data.tasks.read.conll import word_lines
from contexture.data.tasks.read.entity_schemes import OUTSIDE, entity_tags
from contexture.data.text.lines import lines
from contexture.data.text.written_numbers import whole_number

_WORD = re.compile(r"\w+|[^\w\s]")
_NOTHING = ("_", "")
_GAP = ("Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "A-coref", "B", "B-offset", "B-coref")


@dataclass(frozen=True)
class _Columns:
    """The columns of a format, from 0.

    Args:
        word: the word.
        pos: its part of speech.
        head: the number of its head.
        relation: its relation to the head.
        predicate: UniversalPropositions' predicate; the columns behind it hold the roles, one for each predicate.
        fewest: columns that a line has at least.
    """

    word: int
    pos: int
    head: int
    relation: int
    predicate: int
    fewest: int


_CONLLU = _Columns(word=1, pos=3, head=6, relation=7, predicate=10, fewest=10)
_UP = _Columns(word=1, pos=2, head=3, relation=4, predicate=5, fewest=5)
_Words: TypeAlias = list[tuple[int, list[str]]]
"""The words of a sentence: (line, columns) of each."""


def check_task(task: str, files: Sequence[Path]) -> None:
    """Raises: DataError for an unknown task, or a file whose suffix the task is not read from; reads no file."""
    for path in files:
        suffix = inner_suffix(path)
        if suffix == ".jsonl":
            continue
        if task not in TASKS:
            raise DataError(
                f"there is no task {task!r}{did_you_mean(task, TASKS)}; give one of {', '.join(TASKS)}, or *.jsonl "
                "files, whose task may have any name"
            )
        if suffix not in (fitting := TASKS[task].suffixes):
            named = " or ".join(f"*{each}" for each in fitting)
            raise DataError(f"{path}: {task} is read from {named}, or from *.jsonl; give such a file")


def read_sentences(path: Path, task: str) -> list[Sentence]:
    """Returns the sentences of a file that hold targets of a task.

    Raises:
        DataError: with file:line, when a line is malformed; when the file holds no targets.
    """
    check_task(task, [path])
    check_content(path)
    read = read_objects if inner_suffix(path) == ".jsonl" else TASKS[task].read
    sentences = [sentence for sentence in read(path) if sentence.targets]
    if not sentences:
        raise DataError(f"{path}: no targets of {task} in the file; give a file that holds labelled spans")
    return sentences


def _pos(path: Path) -> Iterator[Sentence]:
    """Each word with its part of speech; in *.conll the last column."""
    at = _columns(path)
    for words in _sentences(path):
        place = at.pos if at else len(words[0][1]) - 1
        tags = [cells[place] for _, cells in words]
        targets = [Target((n, n + 1), None, (tag,)) for n, tag in enumerate(tags) if tag != "_"]
        yield _sentence(path, words, targets, at.word if at else 0)


def _dependencies(path: Path) -> Iterator[Sentence]:
    """Each word's head and the word, with their relation; the head of a root is the word itself."""
    at = _columns(path)
    assert at is not None
    for words in _sentences(path):
        place = {cells[0]: n for n, (_, cells) in enumerate(words)}
        targets = []
        for n, (number, cells) in enumerate(words):
            head = n if cells[at.head] == "0" else place.get(cells[at.head])
            if cells[at.relation] == "_":
                continue
            if head is None:
                raise DataError(f"{path}:{number}: head {cells[at.head]!r} is no word of the sentence; give its number")
            targets.append(Target((head, head + 1), (n, n + 1), (cells[at.relation],)))
        yield _sentence(path, words, targets, at.word)


def _srl(path: Path) -> Iterator[Sentence]:
    """A predicate and the head of an argument, with the argument's role: a column of roles for each predicate, in
    their order, as UniversalPropositions has them.

    Differs: the paper's arguments (OntoNotes) are phrases; here they are the phrases' heads, which alone are labelled.
    """
    at = _columns(path)
    assert at is not None
    for words in _sentences(path):
        rows = [cells for _, cells in words]
        columns = [
            n for n in range(at.predicate + 1, len(rows[0])) if any(cells[n] for cells in rows)
        ]  # one that is empty throughout is none
        if not columns:
            continue  # without a predicate, or with ones that nobody has labelled
        predicates = [n for n, cells in enumerate(rows) if cells[at.predicate] not in _NOTHING]
        if len(columns) != len(predicates):
            raise DataError(
                f"{path}:{words[0][0]}: predicates: {len(predicates)}, columns of roles: {len(columns)}; give each "
                "predicate of a sentence a column"
            )
        targets = []
        for column, predicate in zip(columns, predicates, strict=True):
            roles = [(n, cells[column]) for n, cells in enumerate(rows) if cells[column] not in (*_NOTHING, "V")]
            targets += [Target((predicate, predicate + 1), (n, n + 1), (role,)) for n, role in roles]
        yield _sentence(path, words, targets, at.word)


def _entities(path: Path) -> Iterator[Sentence]:
    """The words of each entity, with its type: O in the last column, or tags of one of the forms of `entity_tags`. An
    I-X behind another type begins an entity too, as in CoNLL-2003's own files."""
    known = entity_tags(list(dict.fromkeys(cells[-1] for words in _sentences(path) for _, cells in words)))
    for words in _sentences(path):
        targets, begin, kind = list[Target](), 0, ""
        # A last O ends an entity at the end of the sentence.
        for n, (number, cells) in enumerate([*words, (0, ["O"])]):
            if known is None and entity_tags([OUTSIDE, "B-TYPE", cells[-1]]) is None:
                raise DataError(f"{path}:{number}: {cells[-1]!r} is no tag of an entity; give O, B-TYPE or I-TYPE")
            mark, _, own = (known or {}).get(cells[-1], cells[-1]).partition("-")
            # B and S begin a new entity, also behind one of the same type.
            if kind and (mark in ("O", "B", "S") or own != kind):
                targets.append(Target((begin, n), None, (kind,)))
                kind = ""
            if not kind:
                begin, kind = n, own
        yield _sentence(path, words, targets, 0)


def _coreference(path: Path) -> Iterator[Sentence]:
    """A pronoun and each of two names of a passage: label `coreferent`, or none (Webster et al. 2018, GAP).

    The text is split into words and marks, so that spans are whole words. Differs: the paper's sets are OntoNotes and
    DPR, with a label for no too; one sigmoid says the same.
    """
    place, width = dict[str, int](), 0
    for number, line in lines(path):
        cells = line.rstrip("\r\n").split("\t")
        if not place:
            if lacking := [name for name in _GAP if name not in cells]:
                raise DataError(f"{path}:{number}: no column {lacking[0]!r}; give GAP's columns: {', '.join(_GAP)}")
            place = {name: cells.index(name) for name in _GAP}
            width = len(cells)
            continue
        if len(cells) != width:
            raise DataError(f"{path}:{number}: {len(cells)} columns where the header has {width}")
        text = cells[place["Text"]]
        bounds = [match.span() for match in _WORD.finditer(text)]
        pronoun = _span_at(path, number, text, bounds, cells, place, "Pronoun")
        targets = []
        for name in ("A", "B"):
            verdict = cells[place[f"{name}-coref"]].upper()
            if verdict not in ("TRUE", "FALSE"):
                raise DataError(f"{path}:{number}: {name}-coref is {verdict!r}, not TRUE or FALSE")
            labels = ("coreferent",) if verdict == "TRUE" else ()
            targets.append(Target(pronoun, _span_at(path, number, text, bounds, cells, place, name), labels))
        words = tuple(text[begin:end] for begin, end in bounds)
        yield Sentence(words, tuple(targets), f"{path}:{number}")


def _span_at(
    path: Path,
    number: int,
    text: str,
    bounds: Sequence[Span],
    cells: Sequence[str],
    place: dict[str, int],
    name: str,
) -> Span:
    """Returns the words of a mention, which a line names by its text and its first character."""
    mention, offset = cells[place[name]], cells[place[f"{name}-offset"]]
    first = whole_number(offset)
    if first is None or not mention or text[first : first + len(mention)] != mention:
        raise DataError(
            f"{path}:{number}: {name} is {mention!r} at {name}-offset {offset}, where the text reads otherwise; give "
            "the character at which it begins, from 0"
        )
    behind = first + len(mention)
    own = [n for n, (begin, end) in enumerate(bounds) if begin < behind and end > first]
    if not own:
        raise DataError(f"{path}:{number}: {name} is {mention!r}, which holds no word; give a mention of words")
    return own[0], own[-1] + 1


def _columns(path: Path) -> _Columns | None:
    return {".conllu": _CONLLU, ".up": _UP}.get(inner_suffix(path))


def _sentences(path: Path) -> Iterator[_Words]:
    """Yields the words of each sentence; all words of a sentence have the same number of columns."""
    at = _columns(path)
    words: _Words = []
    for number, cells in word_lines(path, at is not None):
        if isinstance(cells, str | None):  # a blank line, or the begin of a document
            if words:
                yield words
            words = []
            continue
        if isinstance(cells, DataError):
            raise cells
        if at is not None and re.fullmatch("[0-9]+[-.][0-9]+", cells[0]):
            continue  # a range of words, or an empty node
        fewest, expected = (at.fewest, f"at least {at.fewest}") if at else (2, "a word and its tag")
        if len(cells) < fewest:
            raise DataError(f"{path}:{number}: {len(cells)} columns, not {expected}; put tabs between them")
        if words and len(cells) != len(words[0][1]):
            raise DataError(
                f"{path}:{number}: {len(cells)} columns where line {words[0][0]} has {len(words[0][1])}; give the "
                "words of a sentence the same columns"
            )
        words.append((number, cells))
    if words:
        yield words


def _sentence(path: Path, words: _Words, targets: Sequence[Target], place: int) -> Sentence:
    return Sentence(tuple(cells[place] for _, cells in words), tuple(targets), f"{path}:{words[0][0]}")


@dataclass(frozen=True)
class ProbingTask:
    """How the targets of a task are read, and the suffixes of its files."""

    read: Callable[[Path], Iterator[Sentence]]
    suffixes: tuple[str, ...]


TASKS = {
    "pos": ProbingTask(_pos, (".conllu", ".up", ".conll")),
    "dependencies": ProbingTask(_dependencies, (".conllu", ".up")),
    "entities": ProbingTask(_entities, (".conll",)),
    "srl": ProbingTask(_srl, (".up", ".conllu")),
    "coreference": ProbingTask(_coreference, (".tsv",)),
}
"""By their names in --task."""
