"""Labelled texts, pairs of texts and tagged words as their publishers ship them → rows with a column for each."""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

from contexture.data.errors import DataError
from contexture.data.tasks.read.published.converted import Fields, converted
from contexture.data.tasks.read.tables import Row, Table, objects, separated
from contexture.data.text.lines import decoded_lines

PAIR = ("premise", "hypothesis", "label")
_LEAF = re.compile(r"\([0-4] ([^()]+)\)")  # a word may hold a space that does not break
_TREE = re.compile(r"\(([0-4]) .+\)")
# The spelling of brackets in the Penn Treebank.
_BRACKETS = {"-LRB-": "(", "-RRB-": ")"}
_BETWEEN = "\x02"
"""The separator between characters, and between their tags."""


def snli(path: Path) -> Table:
    """Returns the pairs of a *.jsonl of SNLI, leaving out pairs on whose label its annotators did not agree (`-`)."""

    def convert(row: Fields) -> Fields | None:
        label = row.get("gold_label")
        return None if label == "-" else {"premise": row["sentence1"], "hypothesis": row["sentence2"], "label": label}

    return converted(objects(path), ("sentence1", "sentence2"), PAIR, convert)


def xnli(path: Path, language: str = "") -> Table:
    """Returns the pairs of XNLI's own files, in one or all of their languages, or of the training set that its
    publisher translated, which spells one label in another way.

    Raises: DataError for a language without a row.
    """
    table = separated(path, header=True)
    # The training set (XNLI-MT) has names of its own.
    if "hypo" in (table.names or ()):

        def translated(row: Fields) -> Fields:
            # XNLI-MT has its own spelling of this label.
            label = row["label"].strip().replace("contradictory", "contradiction")
            return {"premise": row["premise"], "hypothesis": row["hypo"], "label": label}

        return converted(table, ("premise", "hypo", "label"), PAIR, translated)

    def convert(row: Fields) -> Fields | None:
        pair = {"premise": row["sentence1"], "hypothesis": row["sentence2"], "label": row.get("gold_label")}
        # Without a part in the file's name, the rows of every language are taken.
        return pair if language in ("", row["language"]) else None

    chosen = converted(table, ("language", "sentence1", "sentence2"), PAIR, convert)
    # Looked at, so that a language without a row is an error, and put back in front.
    first = next(chosen.rows, None)
    if first is None:
        raise DataError(f"{path}: no row in {language or 'any language'!r}; give one of its languages, as de")
    return replace(chosen, rows=chain([first], chosen.rows))


def trees(path: Path) -> Table:
    """Returns the sentences of a treebank of sentiment, a tree a line: its words, and the label of its root (0 to 4).

    `(3 (2 It) (4 works))` → text "It works", label 3.
    """
    return Table(str(path), f"{path}:1", ("text", "label"), 0, _sentences(path))


def _sentences(path: Path) -> Iterator[tuple[int, Row | DataError]]:
    for number, line, wrong in decoded_lines(path):
        tree = line.strip()
        if not tree:
            continue
        root, words = _TREE.fullmatch(tree), _LEAF.findall(tree)
        if wrong:
            yield number, wrong
            continue
        # A tree that was cut in two has brackets that do not match.
        if not root or not words or tree.count("(") != tree.count(")"):
            yield number, DataError(f"{path}:{number}: no tree like (3 (2 It) (4 works)); leave the line out")
            continue
        # Plain brackets would be the tree's, and a slash would end a label: the treebank spells both otherwise.
        text = " ".join((_BRACKETS.get(word) or word).replace("\\/", "/") for word in words)
        yield number, {"text": text, "label": root[1]}


def tagged_characters(path: Path) -> Table:
    """Returns the characters and tags of a *.tsv with a sentence in `text_a`, and its tags in `label`: both with a
    control character (U+0002) between two, or a space."""

    def convert(row: Fields) -> Fields:
        words, tags = (
            cell.split(_BETWEEN) if _BETWEEN in cell else cell.split() for cell in (row["text_a"], row.get("label", ""))
        )
        return {"words": words, "tags": tags}

    return converted(separated(path, header=True), ("text_a",), ("words", "tags"), convert)
