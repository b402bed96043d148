"""Reads the files of zero-shot tasks: passages, questions with alternatives, the Children's Book Test."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from contexture.analysis.column_options import column_options
from contexture.analysis.zeroshot.alternatives import filled
from contexture.data.config import TaskConfig
from contexture.data.errors import DataError
from contexture.data.plain_files import inner_suffix
from contexture.data.tasks.encode.example_tokens import answer
from contexture.data.tasks.read.examples import ChoiceExample
from contexture.data.tasks.read.labels import Labels
from contexture.data.tasks.read.read_examples import check_sources, examples, open_table
from contexture.data.text.json_values import fault_of, json_value
from contexture.data.text.lines import LONGEST_TEXT, lines


@dataclass
class Questions:
    """Questions.

    Args:
        texts: the text of each.
        choices: its alternatives.
        labels: the number of the right one, from 0.
        groups: its group; empty if no groups are asked for.
    """

    texts: list[str]
    choices: list[tuple[str, ...]]
    labels: list[int]
    groups: list[str]


def passages(file: str) -> Iterator[str]:
    """Yields the passages of a text file, one in each line, or the `text` of each object of a *.jsonl.

    Raises:
        DataError: with file:line, when an object has no text, or a passage fewer than two words.
    """
    objects = inner_suffix(file) == ".jsonl"
    for number, line in lines(Path(file), most=LONGEST_TEXT):
        if not line.strip():
            continue
        text = _passage(line, f"{file}:{number}") if objects else line.strip()
        if len(text.split()) < 2:
            raise DataError(
                f"{file}:{number}: {text[:40]!r} has fewer than two words; a context and a last word are read"
            )
        yield text


def _passage(line: str, at: str) -> str:
    try:
        row = json_value(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{at}: {fault_of(error)}; give an object in each line") from None
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise DataError(f"{at}: no string `text` in the object; give the passage there")
    return row["text"]


def questions(files: Sequence[str], task: TaskConfig, group: str = "") -> Questions:
    """Returns the questions of files as `--task.kind choice` reads them.

    Args:
        files: labelled files.
        task: their columns and labels.
        group: a column whose values are compared; empty: none.

    Raises:
        DataError: with file:line, when a row cannot be read or a column is missing.
    """
    check_sources(files, "--input")
    labels = Labels(task.labels, named=bool(task.labels))
    read = Questions([], [], [], [])
    for file in files:
        with column_options():
            for example in examples(file, task, labelled=True):
                assert isinstance(example, ChoiceExample)
                read.texts.append(example.text)
                read.choices.append(example.choices)
                read.labels.append(int(answer(example, "choice", labels)))
        if group:
            read.groups += _column(file, task, group)
    return read


def _column(file: str, task: TaskConfig, name: str) -> list[str]:
    """Returns the values of a column of a file."""
    table = open_table(file, task)
    values: list[str] = []
    for number, row in table.rows:
        if isinstance(row, DataError):
            raise row
        if isinstance(row, Mapping):
            value = row.get(name)
        else:
            value = row[table.names.index(name)] if table.names and name in table.names else None
        if value is None:
            raise DataError(f"{table.where}:{number}: no column {name!r}; name one of the file: --group COLUMN")
        values.append(str(value))
    return values


_LINES = 21
"""Numbered lines of a question: 20 of its story, then the one with the blank."""


def book_questions(file: str) -> Questions:
    """Returns the questions of a file of the Children's Book Test (Hill et al. 2016), as its publishers ship it.

    A question is 21 numbered lines and an empty one: `1 sentence` … `20 sentence`, then
    `21 sentence with XXXXX<tab>answer<tab><tab>candidates with | between them`.

    Raises:
        DataError: with file:line, when a line has another form.
    """
    read, story = Questions([], [], [], []), list[str]()
    for number, line in lines(Path(file), most=LONGEST_TEXT):
        text = line.rstrip("\r\n")
        if not text.strip():
            if story:
                raise DataError(f"{file}:{number}: a question ends after {len(story)} lines; it has {_LINES}")
            continue
        # The numbers are checked: a lost line would shift all questions after it.
        count, _, sentence = text.strip().partition(" ")
        if count != str(len(story) + 1):
            raise DataError(
                f"{file}:{number}: line {len(story) + 1} of a question begins with {count[:20]!r}, not with its number"
            )
        if len(story) + 1 < _LINES:
            story.append(sentence)
            continue
        cells = sentence.split("\t")
        candidates = tuple(each for each in cells[-1].split("|") if each)
        if len(cells) != 4 or "XXXXX" not in cells[0] or cells[1] not in candidates:
            raise DataError(
                f"{file}:{number}: give a sentence with XXXXX, the answer, an empty cell and the candidates, with tabs "
                "between them; the answer is one of the candidates"
            )
        read.texts.append(" ".join([*story, cells[0]]))
        read.choices.append(candidates)
        read.labels.append(candidates.index(cells[1]))
        story = []
    if story or not read.texts:
        raise DataError(
            f"{file}: no whole question of {_LINES} numbered lines; give a file of the Children's Book Test"
        )
    return read


def with_shots(asked: Questions, shown: Questions, shots: int, seed: int) -> list[str]:
    """Returns the texts, each behind answered examples, with an empty line between (Brown et al. 2020, section 2.4).

    The answer fills an example's blank, or follows its text. Each question has examples of its own; it is not among
    them.

    Args:
        asked: the questions.
        shown: the answered examples to draw from.
        shots: how many examples each text has.
        seed: of the draws.

    Raises:
        DataError: when there are fewer examples than are to be drawn, or one has several blanks.
    """
    answered = [
        "".join(filled(text, own[label], number))
        for number, (text, own, label) in enumerate(zip(shown.texts, shown.choices, shown.labels, strict=True))
    ]
    questions = list(zip(shown.texts, shown.choices, strict=True))
    texts: list[str] = []
    for number, question in enumerate(zip(asked.texts, asked.choices, strict=True)):
        # A question that is among the examples must not show its own answer.
        others = [n for n, each in enumerate(questions) if each != question]
        if shots > len(others):
            raise DataError(
                f"shots={shots}, and there are {len(others)} examples to draw them from beside the question itself; "
                "give fewer"
            )
        drawn = np.random.default_rng((seed, number)).choice(len(others), shots, replace=False)
        texts.append("\n\n".join([*(answered[others[n]] for n in drawn), question[0]]))
    return texts
