"""The answers of a question as files write them, compared with its context."""

from collections.abc import Mapping, Sequence

import numpy as np

from contexture.data.errors import DataError
from contexture.data.tasks.examples import Answer, QuestionExample


def read_answers(value: object, start: object, context: str, at: str) -> tuple[Answer, ...]:
    """Returns the answers of one question; () for none.

        "Rollo"                                            a string, "" or null for no answer
        ["Rollo", "Rollo"]                                 several that are right
        {"text": ["Rollo"], "answer_start": [308]}         as TFDS and Hugging Face have SQuAD
        [{"text": "Rollo", "answer_start": 308}]           as SQuAD's own files

    start: of a string, the character of the context that it begins at; without it, the first place that reads so.

    An answer keeps a place at which the context reads otherwise: its text is right all the same.

    Raises: DataError for what is none of these.
    """
    return tuple(_answer(text, place, context, at) for text, place in _pairs(value, start, at))


def placed_answer(answers: Sequence[Answer], context: str) -> Answer | None:
    """Returns the first answer that the context holds at its place."""
    return next((one for one in answers if one.start >= 0 and context.startswith(one.text, one.start)), None)


def check_placed(example: QuestionExample) -> None:
    """Raises: DataError where a question has answers, and its context holds none of them at its place: training has
    no span to learn from."""
    if not example.answers or placed_answer(example.answers, example.context):
        return
    text, start = example.answers[0]
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
        return [(value, None if start == "" else start)]
    if isinstance(value, Mapping):
        texts, starts = value.get("text"), value.get("answer_start")
        if isinstance(texts, str | bytes):
            return [(texts, starts)]
        texts = _listed(texts, at)
        starts = [None] * len(texts) if starts is None else _listed(starts, at)
        if len(texts) != len(starts):
            raise DataError(f"{at}: {len(texts)} answers and {len(starts)} places; give each answer one")
        return [*zip(texts, starts, strict=True)]
    pairs: list[tuple[object, object]] = []
    for each in _listed(value, at):
        pairs += _pairs(each, None, at) if isinstance(each, Mapping | str) else [(each, None)]
    return pairs


def _listed(value: object, at: str) -> Sequence[object]:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return value
    raise DataError(f'{at}: the answers are of type {type(value).__name__}; give a string, or {{"text": [], '
                    '"answer_start": []}')  # fmt: skip


def _answer(text: object, place: object, context: str, at: str) -> Answer:
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"{at}: an answer is {text!r}; give a text, or no answer at all")
    if place is None:
        return Answer(text, context.find(text))
    try:
        # As a float first: a table in which some places are empty is often written with 3.0 for 3.
        number = float(place)  # pyright: ignore[reportArgumentType]  # whatever is no number is refused
        start, exact = int(number), number.is_integer()
    except (TypeError, ValueError, OverflowError):
        start, exact = -1, False
    if not exact or isinstance(place, bool):
        raise DataError(f"{at}: the answer begins at {place!r}; give the number of its first character, from 0")
    return Answer(text, start)
