"""Question answering in the form of SQuAD's files: {"data": [{"paragraphs": [{"context", "qas": […]}]}]}."""

import json
from collections.abc import Iterator
from pathlib import Path

from contexture.data.errors import DataError
from contexture.data.plain_files import open_stream, read_stream
from contexture.data.tasks.read.tables import Row, Table, objects
from contexture.data.text.json_values import fault_of, json_value

_FORM = '{"data": [{"paragraphs": [{"context": "…", "qas": [{"id": "…", "question": "…", "answers": […]}]}]}]}'
_NAMES = ("id", "question", "context", "answers")
_FIRST = 1 << 12
"""Bytes in which a file shows whether it is an object, as SQuAD's, or an array of rows."""


def questions_of_json(path: Path) -> Table:
    """Returns the questions of a *.json in SQuAD's form (1.1 or 2.0), a row each, numbered from 1; of an array of
    objects, its rows. A file in SQuAD's form is read whole.

    Raises: DataError for what is neither.
    """
    with open_stream(path) as stream:
        # `replace`: the bytes may end within a character.
        first = stream.read(_FIRST).decode("utf-8", "replace").removeprefix("\ufeff").lstrip()
    # An array of objects has rows like the files of other tasks.
    if not first.startswith("{"):
        return objects(path)
    try:
        content = json_value(read_stream(path).decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 (byte {error.start}); save the file as UTF-8") from None
    # Raised as it is: DataError is a ValueError too, which the next clause rewords.
    except DataError:
        raise
    except (ValueError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        # Text after a whole object is most often the next line of JSON lines.
        several = getattr(error, "msg", "") == "Extra data"
        hint = "if every line is an object, name the file *.jsonl; " if several else ""
        raise DataError(f"{path}{line}: {fault_of(error)}; {hint}a *.json in SQuAD's form is {_FORM}") from None
    # All of them now, so that a fault in the form of the file is raised here.
    rows = [*_rows(path, content)]
    if not rows:
        raise DataError(f"{path}: no question in the file; a *.json in SQuAD's form is {_FORM}")
    return Table(str(path), str(path), _NAMES, 0, iter(enumerate(rows, 1)))


def _rows(path: Path, content: object) -> Iterator[Row | DataError]:
    number = 0
    for article in _list(path, content, "data"):
        for paragraph in _list(path, article, "paragraphs"):
            context = paragraph.get("context") if isinstance(paragraph, dict) else None
            for question in _list(path, paragraph, "qas"):
                number += 1
                if not isinstance(question, dict):
                    yield DataError(f"{path}:{number}: a question is no object; a file in SQuAD's form is {_FORM}")
                    continue
                row: dict[str, object] = {"context": context, "question": question.get("question")}
                # Without an id the row's place names the question.
                row["id"] = question.get("id", "")
                # A question that cannot be answered may list plausible answers, which are none. One without a list of
                # answers is not labelled, which is no answer either.
                if question.get("is_impossible") is True:
                    row["answers"] = []
                elif "answers" in question:
                    row["answers"] = question["answers"]
                yield _checked(path, number, row)


def _checked(path: Path, number: int, row: dict[str, object]) -> Row | DataError:
    try:
        # Half a character can be written as an escape, and would fail only where text is encoded.
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return DataError(f"{path}:{number}: half a character (a lone \\ud800-\\udfff); give text in UTF-8")
    return row


def _list(path: Path, value: object, key: str) -> list[object]:
    inner = value.get(key) if isinstance(value, dict) else None
    if not isinstance(inner, list):
        raise DataError(f"{path}: no list {key!r} where SQuAD's form has one: {_FORM}")
    return inner
