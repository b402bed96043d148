"""Labelled spans as JSON objects, a sentence a line, as jiant's edge-probing files have them:

{"text": "He was born there .", "targets": [{"span1": [0, 1], "span2": [2, 3], "label": "A1"}]}

`text` holds words with spaces between; `words` is a list of them instead. A span is its first word, from 0, and the one
behind its last. `label` is one label or a list of any number. Other fields are not read.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contexture.analysis.probing.target_types import Sentence, Span, Target
from contexture.data.errors import DataError
from contexture.data.text.json_values import fault_of, json_value
from contexture.data.text.lines import lines

_FORM = '{"text": "…", "targets": [{"span1": [0, 1], "label": "…"}]}'


def read_objects(path: Path) -> Iterator[Sentence]:
    """Yields the sentences of a file.

    Raises:
        DataError: with file:line, when a line is not of this form, a span is empty or outside its sentence, or some
            targets are pairs and some single spans.
    """
    pairs: bool | None = None
    for number, line in lines(path):
        if not line.strip():
            continue
        origin = f"{path}:{number}"
        try:
            row = json_value(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{origin}: {fault_of(error)}; give an object a line, {_FORM}") from None
        if not isinstance(row, dict):
            raise DataError(f"{origin}: no object; give {_FORM}")
        words, targets = _words(row, origin), row.get("targets")
        if not isinstance(targets, list):
            raise DataError(f"{origin}: no list of targets; give {_FORM}")
        read = tuple(_target(each, words, origin) for each in targets)
        for target in read:
            # The first target of the file decides.
            pairs = target.span2 is not None if pairs is None else pairs
            if pairs != (target.span2 is not None):
                where = "no span2 where others have one" if pairs else "a span2 where others have none"
                raise DataError(f"{origin}: a target has {where}; give all targets of a file the same spans")
        yield Sentence(words, read, origin)


def _words(row: dict[str, Any], origin: str) -> tuple[str, ...]:
    words = row.get("words")
    if words is None and isinstance(text := row.get("text"), str):
        words = text.split()
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise DataError(f"{origin}: neither text nor a list of words; give {_FORM}")
    if not words:
        raise DataError(f"{origin}: no word in the sentence; give its words with spaces between, or leave it out")
    return tuple(words)


def _target(target: Any, words: tuple[str, ...], origin: str) -> Target:
    if not isinstance(target, dict):
        raise DataError(f'{origin}: a target is no object; give {{"span1": [0, 1], "label": "…"}}')
    labels = target.get("label")
    labels = [labels] if isinstance(labels, str) else labels
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise DataError(f"{origin}: label is {_short(target.get('label'))}, not a text or a list of texts")
    second = target.get("span2")
    span2 = None if second is None else _span(second, "span2", words, origin)
    return Target(_span(target.get("span1"), "span1", words, origin), span2, tuple(dict.fromkeys(labels)))


def _span(span: Any, name: str, words: tuple[str, ...], origin: str) -> Span:
    whole = isinstance(span, list) and len(span) == 2 and all(type(n) is int for n in span)
    if not whole:
        raise DataError(f"{origin}: {name} is {_short(span)}, not [first word, word behind the last]")
    first, behind = span
    if first == behind:
        raise DataError(f"{origin}: {name} is {span}, a span without a word; its end is the word behind its last")
    if not 0 <= first < behind <= len(words):
        raise DataError(f"{origin}: {name} is {span}, outside the sentence's {len(words)} words (counted from 0)")
    return first, behind


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:39]}…"
