"""Questions about documents, for a model that writes its answers: files in the form of CoQA (Reddy et al. 2019) or of
SQuAD.

CoQA's questions are a conversation: each is read after the earlier ones with their answers. SQuAD's questions about a
paragraph are independent, and each is read alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from contexture.analysis.column_options import column_names
from contexture.data.config import TaskConfig
from contexture.data.errors import DataError
from contexture.data.plain_files import inner_suffix, read_stream
from contexture.data.tasks.read.examples import QuestionExample
from contexture.data.tasks.read.read_examples import check_sources, examples
from contexture.data.text.json_values import json_value

_FORM = '{"data": [{"story": "…", "questions": [{"input_text": "…"}], "answers": [{"input_text": "…"}]}]}'


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a document.

    Args:
        id: names it in results.
        document: the text.
        question: the question.
        answers: the right answers; () if the document has none.
        before: the earlier questions of the conversation with their first answers.
    """

    id: str
    document: str
    question: str
    answers: tuple[str, ...]
    before: tuple[tuple[str, str], ...] = ()


def read_questions(files: Sequence[str]) -> list[Question]:
    """Returns the questions of files: a *.json in CoQA's or in SQuAD's form, or rows as `--task.kind span` reads them.

    Raises:
        DataError: when a file is missing or has another form, with the place in it.
    """
    check_sources(files, "--input")
    questions: list[Question] = []
    for file in files:
        if (stories := _stories(file)) is not None:
            questions += (each for number, story in enumerate(stories) for each in _turns(file, number, story))
            continue
        with column_names("question", "context", "answers"):
            for example in examples(file, TaskConfig(kind="span"), labelled=True):
                assert isinstance(example, QuestionExample)
                right = tuple(answer.text for answer in example.answers or ())
                questions.append(Question(example.id, example.context, example.question, right))
    return questions


def _stories(file: str) -> list[object] | None:
    """Returns the stories of a file in CoQA's form, None for another one."""
    if inner_suffix(Path(file)) != ".json":
        return None
    try:
        content = json_value(read_stream(file).decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None  # the reader of SQuAD's form says what is wrong
    stories = content.get("data") if isinstance(content, dict) else None
    if not isinstance(stories, list) or not stories or not isinstance(stories[0], dict) or "story" not in stories[0]:
        return None
    return stories


def _turns(file: str, number: int, story: object) -> Iterator[Question]:
    """Yields the questions of a story."""
    at = f"{file}: data[{number}]"
    if not isinstance(story, dict):
        raise DataError(f"{at} is no object; a file in CoQA's form is {_FORM}")
    document = _text(story, "story", at)
    name = str(story.get("id", number))
    asked = _texts(story.get("questions"), f"{at}.questions")
    # The first answers are the conversation's own; others may have been collected for the same questions.
    answers = [_texts(story.get("answers"), f"{at}.answers")]
    others = story.get("additional_answers") or {}
    if not isinstance(others, dict | list):
        raise DataError(f"{at}.additional_answers is neither an object nor a list; give each set of answers a name")
    for key, own in others.items() if isinstance(others, dict) else enumerate(others):
        answers.append(_texts(own, f"{at}.additional_answers[{key!r}]"))
    if wrong := next((own for own in answers if len(own) != len(asked)), None):
        raise DataError(f"{at}: {len(asked)} questions and {len(wrong)} answers; give every question one")
    for turn, question in enumerate(asked):
        before = tuple(zip(asked[:turn], answers[0][:turn], strict=True))
        yield Question(f"{name}:{turn + 1}", document, question, tuple(own[turn] for own in answers), before)


def _texts(turns: object, at: str) -> list[str]:
    if not isinstance(turns, list) or not turns:
        raise DataError(f"{at} is no list with a turn in it; a file in CoQA's form is {_FORM}")
    return [_text(turn, "input_text", f"{at}[{place}]") for place, turn in enumerate(turns)]


def _text(value: object, key: str, at: str) -> str:
    text = value.get(key) if isinstance(value, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"{at} has no text {key!r}; a file in CoQA's form is {_FORM}")
    return text.strip()
