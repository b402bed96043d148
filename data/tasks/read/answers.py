"""The answers of a question as files write them, compared with its context."""

from collections.abc import Mapping, Sequence

import numpy as np

from contexture.data.errors import DataError
from contexture.data.tasks.read.examples import Answer, QuestionExample
from contexture.data.text.written_lists import written_list
from contexture.data.text.written_numbers import written_number


def read_answers(value: object, start: object, context: str, at: str) -> tuple[Answer, ...]:
    """Returns the answers of one question; () for none.

        "Rollo"                                            a string, "" or null for no answer
        ["Rollo", "Rollo"]                                 several that are right; also written as text
        {"text": ["Rollo"], "answer_start": [308]}         as TFDS and Hugging Face have SQuAD
        [{"text": "Rollo", "answer_start": 308}]           as SQuAD's own files

    start: of a string, the character of the context that it begins at; without it, the first place that reads so.

    An answer keeps a place at which the context reads otherwise: its text is right all the same.

    Raises: DataError for what is none of these.
    """
    return tuple(_answer(text, place, context, at) for text, place in _pairs(_read(value, context, at), start, at))


def _read(value: object, context: str, at: str) -> object:
    """Returns the list of answers that a string holds, as a *.csv has it; any other value unchanged.

    Raises: DataError for a list that cannot be read, and for an object that was written as text.
    """
    # Text of the context is an answer, even if it looks like a list.
    if not isinstance(value, str) or value.strip() in context:
        return value
    if value.strip().startswith("{") and "text" in value:
        raise DataError(
            f"{at}: the answers are an object written as text; give *.jsonl or *.parquet, which have objects"
        )
    try:
        items = written_list(value)
    except ValueError as error:
        raise DataError(
            f"{at}: the answers are a list written as text that cannot be read ({error}); give *.jsonl or *.parquet"
        ) from None
    return value if items is None else items


def placed_answer(answers: Sequence[Answer], context: str) -> Answer | None:
    """Returns the first answer that the context holds at its place."""
    return next((one for one in answers if one.start >= 0 and context.startswith(one.text, one.start)), None)


def check_placed(example: QuestionExample) -> None:
    """Raises: DataError where a question has answers, and its context holds none of them at its place: training has
    no span to learn from."""
    if not example.answers or placed_answer(example.answers, example.context):
        return
    text, start = example.answers[0]
    # Where it is instead, for the message.
    near = example.context.find(text)
    if start < 0 and near < 0:
        raise DataError(f"{example.origin}: the answer {text[:40]!r} is not in its context; copy it letter for letter")
    there = f" (it is at {near})" if near >= 0 else ""
    raise DataError(
        f"{example.origin}: the answer {text[:40]!r} is not at character {start} of its context{there}; count from 0, "
        "and copy it letter for letter"
    )


def _pairs(value: object, start: object, at: str) -> list[tuple[object, object]]:
    if value is None or (isinstance(value, str) and not value.strip()):
        return []
    if isinstance(value, str):
        # A table has "" where it has no place.
        return [(value, None if start == "" else start)]
    # As TFDS and Hugging Face: lists of texts and of places.
    if isinstance(value, Mapping):
        texts, starts = value.get("text"), value.get("answer_start")
        if isinstance(texts, str | bytes):
            return [(texts, starts)]
        # A question without an answer: {"text": null}.
        if texts is None and "text" in value:
            return []
        texts = _listed(texts, at)
        starts = [None] * len(texts) if starts is None else _listed(starts, at)
        if len(texts) != len(starts):
            raise DataError(f"{at}: {len(texts)} answers and {len(starts)} places; give each answer one")
        return [*zip(texts, starts, strict=True)]
    pairs: list[tuple[object, object]] = []
    for each in _listed(value, at):
        # A list may hold strings, or objects with a text and a place.
        pairs += _pairs(each, None, at) if isinstance(each, Mapping | str) else [(each, None)]
    return pairs


def _listed(value: object, at: str) -> Sequence[object]:
    # TFDS gives lists as arrays.
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return value
    raise DataError(
        f'{at}: the answers are of type {type(value).__name__}; give a string, or {{"text": [], "answer_start": []}}'
    )


def _answer(text: object, place: object, context: str, at: str) -> Answer:
    if isinstance(text, bytes):
        # TFDS gives text as bytes.
        text = text.decode("utf-8", "replace")
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"{at}: an answer is {text!r}; give a text, or no answer at all")
    if place is None:
        # -1 where the context does not hold it: a right answer all the same, but none to learn from.
        return Answer(text, context.find(text))
    # A table in which some places are empty is often written with 3.0 for 3.
    number = written_number(place) if isinstance(place, str) else place
    whole = isinstance(number, float | np.floating) and float(number).is_integer()
    if isinstance(number, bool) or not (whole or isinstance(number, int | np.integer)):
        raise DataError(f"{at}: the answer begins at {place!r}; give the number of its first character, from 0")
    start = int(number)  # pyright: ignore[reportArgumentType]  # a number by now
    return Answer(text, start)
