"""Multiple choice as its publishers ship it → rows with a text, alternatives and the right one."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contexture.data.errors import DataError
from contexture.data.plain_files import read_stream
from contexture.data.tasks.read.published.converted import Fields, converted
from contexture.data.tasks.read.tables import Row, Table, objects, separated
from contexture.data.text.json_values import json_value

COLUMNS = ("text", "choices", "label")
LETTERS, NUMBERS = "ABCDE", "12345"
"""The names of alternatives in RACE (four) and CommonsenseQA (five). ARC, which has CommonsenseQA's form with three to
five alternatives, numbers them in some questions."""


def swag(path: Path) -> Table:
    """Returns SWAG's rows: a sentence, and four ways to go on. Each alternative is the beginning of the second
    sentence, which all four share, with an ending of it (BERT, section 4.4)."""
    endings = [f"ending{number}" for number in range(4)]

    def convert(row: Fields) -> Fields:
        choices = [f"{row['sent2']} {row[ending]}".strip() for ending in endings]
        # A file without labels lacks the column.
        return {"text": row["sent1"], "choices": choices, "label": row.get("label")}

    return converted(separated(path, header=True), ("sent1", "sent2", *endings), COLUMNS, convert)


def cloze_stories(path: Path) -> Table:
    """Returns stories of four sentences, each with two endings, called 1 and 2."""
    sentences = [f"InputSentence{number}" for number in range(1, 5)]
    endings = ["RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2"]

    def convert(row: Fields) -> Fields:
        story = " ".join(row[sentence].strip() for sentence in sentences)
        return {"text": story, "choices": [row[ending] for ending in endings], "label": row.get("AnswerRightEnding")}

    return converted(separated(path, header=True), (*sentences, *endings), COLUMNS, convert)


def copa(path: Path) -> Table:
    """Returns COPA's premises, each with what is asked for in the words of its authors, and two alternatives."""
    asked = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}

    def convert(row: Fields) -> Fields:
        choices = [row["choice1"], row["choice2"]]
        return {"text": f"{row['premise']} {asked[row['question']]}", "choices": choices, "label": row.get("label")}

    return converted(objects(path), ("premise", "choice1", "choice2", "question"), COLUMNS, convert)


def commonsense_questions(path: Path) -> Table:
    """Returns CommonsenseQA's questions, each with its answers in the order of their names, as A to E."""

    def convert(row: Fields) -> Fields:
        question, key = row["question"], row.get("answerKey")
        choices = {choice["label"]: choice["text"] for choice in question["choices"]}
        # The order of the names counts, not the order in the file.
        names = "".join(sorted(choices))
        # A to E, or 1 to 5, without a gap.
        if names not in (LETTERS[: len(choices)], NUMBERS[: len(choices)]) or not names:
            raise ValueError("an alternative is missing")
        # ARC's numbers become letters, as in CommonsenseQA.
        label = LETTERS[names.index(key)] if key and key in names else key
        return {"text": question["stem"], "choices": [choices[x] for x in names], "label": label}

    return converted(objects(path), ("question",), COLUMNS, convert)


def passages_of_race(folder: Path) -> Table:
    """Returns the questions of a folder of RACE, a file for each passage, numbered from 1 over all files. The text is a
    question and its passage; its four answers are called A to D.

    Differs: GPT-1 has the passage in front. Behind the question it is the passage whose end is cut where it is too
    long, and never the question.

    Raises: DataError for a folder without passages.
    """
    # Sorted, so that a question has the same number on every machine.
    files = sorted(folder.rglob("*.txt")) if folder.is_dir() else []
    if not files:
        raise DataError(f"{folder}: holds no passage (*.txt); give a folder of RACE as its publisher ships it")
    return Table(str(folder), str(folder), COLUMNS, 0, _numbered(files))


def _numbered(files: list[Path]) -> Iterator[tuple[int, Row | DataError]]:
    number = 0
    for file in files:
        for row in _questions(file):
            number += 1
            yield number, row


def _questions(file: Path) -> list[Row | DataError]:
    try:
        content: Any = json_value(read_stream(file).decode("utf-8-sig"))
        passage, questions, options = content["article"], content["questions"], content["options"]
        # Passages without answers are there to be predicted.
        answers = content.get("answers") or [None] * len(questions)
        rows: list[Row | DataError] = [
            {"text": f"{question} {passage}", "choices": [*choices], "label": answer}
            # strict: where a question or an answer is missing, nobody knows which ones belong together.
            for question, choices, answer in zip(questions, options, answers, strict=True)
        ]
        json.dumps(content, ensure_ascii=False).encode()  # half a character would fail much later
    except DataError as error:
        return [error]
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return [DataError(f'{file}: no passage of RACE, {{"article": "…", "questions": […], …}}; leave the file out')]
    return rows
