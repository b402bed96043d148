"""Which column of a table holds the text, the second text, the label or the choices, as named or by its usual name; and
a row of these columns → an Example."""

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from contexture.data.config import TaskConfig
from contexture.data.errors import DataError, did_you_mean
from contexture.data.plain_files import inner_suffix
from contexture.data.task_kinds import KINDS, TEXTS, Role
from contexture.data.tasks.read.answers import read_answers
from contexture.data.tasks.read.conll import Sentence
from contexture.data.tasks.read.examples import ChoiceExample, Example, Pair, QuestionExample, Tagged, Text
from contexture.data.tasks.read.file_report import FileReport
from contexture.data.tasks.read.tables import LONGEST_FIELD, Row, Table, counted, listed
from contexture.data.text import tfds
from contexture.data.text.written_lists import written_list

logger = logging.getLogger(__name__)

# Usual names of columns that several kinds have, or that only accompany a text (`data.task_kinds` has the others).
_PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("text1", "text2"),
    ("first", "second"),
    ("text_a", "text_b"),
)
_CHOICES = ("choices", "endings", "options", "alternatives")
_PASSAGES, _STARTS = ("context", "paragraph", "passage", "document", "text"), ("answer_start", "start")
_CHOICE = re.compile(r"(choice|ending|option|alternative|solution|sol)_?([0-9]+)")


_CONTEXT = Role("context", "second", _PASSAGES, prefer=True)
_FIRST_TEXT = Role("text", "text", (*TEXTS, *(first for first, _ in _PAIRS)))
"""Of a pair whose second text is named."""


@dataclass(frozen=True)
class Column:
    """A column that is read."""

    role: str
    """What it is read for: "second text"."""
    key: str | int
    """Its name where rows are mappings, else its place from 0."""
    called: str
    """How messages name it: "column 'premise'"."""
    inner: tuple[str, ...] = ()
    """The names of the field within its objects: ("de",) of the column 'translation.de'."""

    def __str__(self) -> str:
        return f"the {self.role} ({self.called})"


@dataclass(frozen=True)
class Columns:
    """The columns of a task. tagged: `text` holds words, and `label` a tag for each. spans: `text` holds questions,
    `second` their contexts, and `label` their answers."""

    text: Column
    second: Column | None
    choices: tuple[Column, ...]
    label: Column | None
    tagged: bool
    start: Column | None = None
    id: Column | None = None
    spans: bool = False


def find_columns(table: Table, task: TaskConfig, labelled: bool, *, speaks: bool = True) -> Columns:
    """Returns the columns that are read: those that the task names, or those with usual names, which are logged.

    Raises: DataError where a column is missing, or several have usual names.
    """
    tagged = task.kind == "tag"
    kind = KINDS.get(task.kind, KINDS["classify"])
    # Named by the user, or by the format (CoNLL); empty: to be found.
    text, second, label = task.text or table.usual[0], task.second, task.label or table.usual[1]
    names = _Names(table, task.kind, labelled)
    text, second, label = names.real(text), names.real(second), names.real(label)
    # Without names, every column has to be given by its position.
    if table.names is None and not (text and (label or not labelled) and (task.choices or task.kind != "choice")):
        raise DataError(f"{table.where}: a file without a header wants positions; give {names.positions}")
    # CoNLL with words and no tags.
    if labelled and table.usual[0] and table.width == 1:
        raise DataError(f"{table.head}: 1 column where a word and its tag are wanted; give every word its tag")

    if task.kind == "span":
        return _span_columns(names, task, (text, second, label), labelled, speaks)

    # The most telling names first: a column that is found is not looked at for the next role. So `question` is the text
    # of a choice, whose alternatives are called choice1, …, and a pair's first text where there is a `sentence` too.
    choices = tuple(map(names.real, task.choices))
    choices = choices or (names.choices((text, label)) if task.kind == "choice" else ())
    # Pairs are looked for only where neither text is named.
    if text or choices or tagged:
        text = names.resolve(kind.text, text, (*choices, label))
    elif second:
        text = names.resolve(_FIRST_TEXT, text, (second, label))
    else:
        text, second = names.texts((label,))
    text_column = names.column(text, "words" if tagged else "first text" if second else "text", "text")
    second_column = names.column(second, "second text", "second") if second else None
    # One column holds lists; several hold an alternative each.
    if len(choices) == 1:
        choice_columns = [names.column(choices[0], "alternatives", "choices")]
    else:
        choice_columns = [names.column(name, f"alternative {n}", "choices") for n, name in enumerate(choices)]
    label_column = None
    if labelled:
        label = names.resolve(kind.label, label, (text, second, *choices))
        label_column = names.column(label, kind.label.name, "label")

    columns = [column for column in (text_column, second_column, *choice_columns, label_column) if column]
    if choices:
        names.check_apart(columns)
    if speaks and (not task.text or (labelled and not task.label) or (choices and not task.choices)):
        _log(table, columns)
    return Columns(text_column, second_column, tuple(choice_columns), label_column, tagged)


def _span_columns(
    names: "_Names", task: TaskConfig, given: tuple[str, str, str], labelled: bool, speaks: bool
) -> Columns:
    """Returns the columns of questions: the question, the context, the answers and where they begin, an id."""
    kind, (question, context, answers) = KINDS["span"], given
    question = names.resolve(kind.text, question, (context, answers))
    context = names.resolve(_CONTEXT, context, (question, answers))
    columns = [names.column(question, "question", "text"), names.column(context, "context", "second")]
    answer_column = start_column = None
    if labelled:
        answers = names.resolve(kind.label, answers, (question, context))
        answer_column = names.column(answers, "answers", "label")
        columns.append(answer_column)
        # Optional: without it, the first place in the context that reads so is the answer's.
        starts = names.real(task.answer_start) or next(iter(names.usual(_STARTS, (question, context, answers))), "")
        if starts:
            start_column = names.column(starts, "place of the answer", "answer-start")
            columns.append(start_column)
    ids = names.usual(("id",), (question, context, answers))
    names.check_apart(columns)
    if speaks and (not task.text or not task.second or (labelled and not task.label)):
        _log(names.table, columns)
    id_column = names.column(ids[0], "id", "id") if ids else None
    return Columns(columns[0], columns[1], (), answer_column, False, start_column, id_column, spans=True)


def _log(table: Table, columns: Sequence[Column]) -> None:
    name = table.where if table.where.startswith(tfds.PREFIX) else Path(table.where).name
    logger.info(f"{name}: " + ", ".join(f"{column.role} from {column.called}" for column in columns))


def _separator(table: Table) -> str:
    """Returns a hint where the only column of a table looks like several with another separator between, else ""."""
    own, name = ("\t", "a tab") if inner_suffix(table.where) == ".tsv" else (",", "a comma")
    # With the wrong separator a whole line is one cell.
    other = next((sign for sign in "\t;|," if sign in table.lone and sign != own), "")
    shown = {"\t": "tabs", ";": "semicolons", "|": "bars", ",": "commas"}
    kinds = {"\t": "; name it *.tsv", ",": "; name it *.csv"}
    return (
        f"; its columns seem to have {shown[other]} between them: put {name} there{kinds.get(other, '')}"
        if other
        else ""
    )


_CONLL = "; if this is CoNLL, a word and its tag in each line, name it *.conll"


def _is_conll(table: Table) -> bool:
    """Returns whether the first line of a table, where names are expected, may be a word and its tag."""
    return table.headed and table.width > 1 and not any(re.search(r"\s", name) for name in table.names or ())


class _Names:
    """Finds columns of a table by the name that the task gives or by usual names, and words the errors."""

    def __init__(self, table: Table, kind: str, labelled: bool) -> None:
        self.table, self.names = table, table.names or ()
        # What messages show and suggest: the columns, their positions, another format.
        self.columns_are = f"the columns are {listed(self.names)}" if self.names else "there are no columns"
        texts, label = ("--task.text 1 --task.choices 2 3", 4) if kind == "choice" else ("--task.text 1", 2)
        texts, label = ("--task.text 1 --task.second 2", 3) if kind == "span" else (texts, label)
        self.positions = f"{texts} --task.label {label}" if labelled else f"{texts} --task.header no"
        self.hint = f"; if this line is no header, give positions: {self.positions}" if table.headed else ""
        self.hint = _separator(table) + (_CONLL if kind == "tag" and _is_conll(table) else self.hint)

    def real(self, asked: str) -> str:
        """Returns the name of the one column that is called so in another case; else what was asked for."""
        # A name with a point may be a column itself; otherwise its first part is one, and the rest a field in it.
        outer, dot, inner = ("", "", "") if asked in self.names else asked.partition(".")
        for one, rest in ((asked, ""), (outer, dot + inner)):
            same = [name for name in self.names if name.lower() == one.lower()]
            if len(same) == 1 and asked not in self.names:
                return same[0] + rest
        return asked

    def column(self, asked: str, role: str, option: str) -> Column:
        """Returns a column by its name, perhaps with a field within its objects (`translation.de`), or by its position.

        Raises: DataError where no column is called so.
        """
        table, places = self.table, [place for place, name in enumerate(self.names) if name == asked]
        # In another case only where no column is called exactly so.
        places = places or [place for place, name in enumerate(self.names) if name.lower() == asked.lower()]
        if len(places) == 1:
            # Rows of files are sequences, read by place; objects are read by name.
            return Column(role, places[0] if table.width else asked, f"column {asked!r}")
        if places:
            several = " or ".join(str(place + 1) for place in places)
            raise DataError(f"{table.head}: several columns are called {asked!r}; give the position, {several}")
        if not asked.isdecimal() and table.names is None:
            raise DataError(
                f"{table.where}: columns have no names here, and --task.{option} is {asked!r}; give a position, from 1"
            )
        outer, dot, inner = asked.partition(".")
        # Only objects have fields within.
        if dot and not table.width and outer in self.names:
            return Column(role, outer, f"column {asked!r}", tuple(inner.split(".")))
        if not asked.isdecimal() or not table.width:
            raise self._no_column(asked)
        if not 1 <= int(asked) <= table.width:
            raise DataError(
                f"{table.head}: --task.{option} is {asked} where there are 1 to {table.width}; give another"
                f"{_separator(table)}"
            )
        # Positions count from 1.
        place = int(asked) - 1
        return Column(role, place, f"column {asked}" + (f" {self.names[place]!r}" if self.names else ""))

    def _no_column(self, asked: str) -> DataError:
        near = "" if _separator(self.table) else did_you_mean(repr(asked), map(repr, self.names))
        hint = "" if near else self.hint
        return DataError(f"{self.table.head}: there is no column {asked!r}{near}; {self.columns_are}{hint}")

    def resolve(self, role: Role, named: str, used: Sequence[str]) -> str:
        """Returns the column of a role: the one that was named, or one with a usual name that is not used yet.

        Raises: DataError where no column has a usual name, or several have and none is preferred.
        """
        if named:
            return named
        columns = self.usual(role.usual, used)
        if len(columns) > 1 and not role.prefer:
            raise self._unclear(role.name, role.option, columns)
        if not columns:
            raise DataError(
                f"{self.table.head}: no column has a usual name of the {role.name} ({', '.join(role.usual[:3])}, …); "
                f"{self.columns_are}; name it with --task.{role.option}{self.hint}"
            )
        return columns[0]

    def texts(self, used: Sequence[str]) -> tuple[str, str]:
        """Returns the column of the text and "", or the columns of the two texts of a pair."""
        columns = ((self.usual([first], used), self.usual([second], used)) for first, second in _PAIRS)
        pairs = [(first[0], second[0]) for first, second in columns if first and second]
        if not pairs:
            return self.resolve(KINDS["classify"].text, "", used), ""
        # Two pairs, or a pair and a single text: a guess which one is meant would be noticed by nobody.
        others = self.usual(TEXTS, (*pairs[0], *used))
        if len(pairs) > 1 or others:
            raise self._unclear("text", "text", list(dict.fromkeys([*chain(*pairs), *others])))
        return pairs[0]

    def choices(self, used: Sequence[str]) -> tuple[str, ...]:
        """Returns the column of a list of alternatives, or the columns of one each, numbered from 0 or 1."""
        # Columns by what they are called without their number: {"ending": {0: "ending0", 1: "ending1"}}.
        groups: dict[str, dict[int, str]] = {name: {0: name} for name in self.usual(_CHOICES, used)}
        for name in self.names:
            match = _CHOICE.fullmatch(name.lower())
            if match:
                group, number = groups.setdefault(match[1], {}), int(match[2])
                if number in group:
                    raise self._unclear(f"alternative {number}", "choices", [group[number], name])
                group[number] = name
        if not groups:
            raise DataError(
                f"{self.table.head}: no columns have usual names of alternatives (choices; choice1 and choice2; …); "
                f"{self.columns_are}; name them with --task.choices{self.hint}"
            )
        if len(groups) > 1:
            several = [name for group in groups.values() for name in group.values()]
            raise self._unclear("alternatives", "choices", several)
        ((stem, group),) = groups.items()
        # In objects, few questions may have as many alternatives as the longest list.
        others = {
            match[2]: name
            for name in self.table.rare
            if (match := _CHOICE.fullmatch(name.lower())) and match[1] == stem
        }
        while (number := max(group) + 1) and str(number) in others:
            group[number] = others[str(number)]
            self.names = (*self.names, group[number])
        # ending0, ending1, ending3: a gap means that one was overlooked.
        numbers = sorted(group)
        if numbers[0] > 1 or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            raise DataError(
                f"{self.table.head}: {listed([group[n] for n in numbers])} are not numbered from 0 or 1 on without a "
                "gap; name the columns of the alternatives with --task.choices"
            )
        return tuple(group[number] for number in numbers)

    def check_apart(self, columns: Sequence[Column]) -> None:
        """Raises: DataError where one column is read for two things."""
        for place, column in enumerate(columns):
            for other in columns[:place]:
                if (other.key, other.inner) == (column.key, column.inner):
                    raise DataError(
                        f"{self.table.head}: {column.called} is both the {other.role} and the {column.role}; "
                        "give each a column of its own: --task.text, --task.choices, --task.label"
                    )

    def usual(self, usual: Sequence[str], used: Sequence[str]) -> list[str]:
        """Returns the columns with these names, in the order of these; in another case where none is so exactly."""
        free = [column for column in self.names if column not in used]
        exact = {name: [column for column in free if column == name] for name in usual}
        return [column for name in usual for column in exact[name] or free if column.lower() == name]

    def _unclear(self, role: str, option: str, columns: Sequence[str]) -> DataError:
        return DataError(f"{self.table.head}: {listed(columns)} may each be the {role}; name it with --task.{option}")


@dataclass(frozen=True)
class RowReader:
    """Makes an Example of one row."""

    at: str
    """Its place, for an error: "data/train.tsv:7"."""
    origin: str
    """Its id: "train.tsv:7"."""
    report: FileReport | None

    def example(self, row: Row, columns: Columns) -> Example:
        label, at = columns.label, self.at
        if columns.tagged:
            # A list, or a string with spaces: both are usual in *.jsonl; CoNLL gives lists.
            words = self._sequence(row, columns.text, self._text)
            tags = self._sequence(row, label, lambda value, called: _label(value, called, at)) if label else None
            if tags is not None and len(words) != len(tags):
                raise DataError(
                    f"{at}: {counted(len(words), 'word')} and {counted(len(tags), 'tag')}; give every word one tag"
                )
            # Of all formats, CoNLL alone knows documents.
            if isinstance(row, Sentence):
                return Tagged(words, tags, self.origin, row.document, row.follows)
            return Tagged(words, tags, self.origin)
        # All other kinds begin with a text.
        text = self._text(self._cell(row, columns.text), str(columns.text))
        if columns.spans and columns.second is not None:
            return self._question(row, columns, text, self._text(self._cell(row, columns.second), str(columns.second)))
        label_text = _label(self._cell(row, label), str(label), at) if label else None
        if columns.choices:
            return ChoiceExample(text, self._alternatives(row, columns.choices), label_text, self.origin)
        if columns.second is None:
            return Text(text, label_text, self.origin)
        second = self._text(self._cell(row, columns.second), str(columns.second))
        return Pair(text, second, label_text, self.origin)

    def _question(self, row: Row, columns: Columns, question: str, context: str) -> QuestionExample:
        answers = None
        if columns.label is not None:
            start = self._cell(row, columns.start) if columns.start is not None else None
            answers = read_answers(self._cell(row, columns.label), start, context, self.at)
        given = self._cell(row, columns.id) if columns.id is not None else None
        # An id that is empty is none: the row's place names the question then.
        own = "" if given is None else str(given).strip()
        return QuestionExample(own or self.origin, question, context, answers, self.origin)

    def _cell(self, row: Row, column: Column, *, optional: bool = False) -> object:
        """Returns the content of a column. optional: None where the row lacks it. Raises: DataError if it does."""
        try:
            value: Any = row[column.key]  # pyright: ignore[reportArgumentType, reportCallIssue]  # the key fits its table
            for name in column.inner:
                value = value[name]
        # The row has no such column, or the field is looked for in what is no object.
        except (KeyError, TypeError):
            if optional:
                return None
            every = "row is to have that field" if column.inner else "line is to have the same keys"
            raise DataError(f"{self.at}: {column} is missing; every {every}") from None
        # As tokens a text takes many times its memory.
        if isinstance(value, str) and len(value) > LONGEST_FIELD:
            raise DataError(
                f"{self.at}: {column} has {len(value):,} characters, more than {LONGEST_FIELD:,}; break it up, or "
                "leave the row out"
            )
        return value

    def _sequence(self, row: Row, column: Column, read: Callable[[object, str], str]) -> tuple[str, ...]:
        """Returns words, or tags, from a list of them, also one written as text, or a string with single spaces between
        them."""
        # Tags may be numbers; a list of numbers is no words.
        value = self._listed(self._cell(row, column), column, numbers=column.role == "tags")
        if isinstance(value, str):
            # At single spaces: a double one gives an empty word, and does not move the tags after it.
            value = value.split(" ") if value.strip() else []
        if not isinstance(value, list):
            raise DataError(
                f"{self.at}: {column} are {_shown(value)}; give a list, or a string with spaces between them"
            )
        if not value:
            raise DataError(f"{self.at}: {column} are empty; give a row at least one word")
        # For messages: "word 3 (column 'tokens')".
        one = column.role.removesuffix("s")
        return tuple(read(each, f"{one} {place} ({column.called})") for place, each in enumerate(value, 1))

    def _listed(self, value: object, column: Column, *, numbers: bool = False) -> object:
        """Returns the list that a cell holds as text, as a *.csv has it; any other cell unchanged."""
        try:
            items = written_list(value, numbers=numbers) if isinstance(value, str) else None
        except ValueError as error:
            raise DataError(
                f"{self.at}: {column} are a list written as text that cannot be read ({error}); give *.jsonl or "
                "*.parquet, which have lists, or single spaces between words"
            ) from None
        return value if items is None else items

    def _alternatives(self, row: Row, columns: Sequence[Column]) -> tuple[str, ...]:
        """Returns alternatives from a list in one column, or from one column each, the last of which may be empty."""
        at = self.at
        if len(columns) > 1:
            # The first two alternatives must be there, the others may be missing.
            cells = [self._cell(row, column, optional=n > 1) for n, column in enumerate(columns)]
            # A question with fewer alternatives than there are columns leaves the last ones empty.
            while len(cells) > 2 and (cells[-1] is None or (isinstance(cells[-1], str) and not cells[-1].strip())):
                cells.pop()
            return tuple(self._text(cell, str(column)) for cell, column in zip(cells, columns, strict=False))
        # A list in one column.
        column = columns[0]
        value = self._listed(self._cell(row, column), column)
        if not isinstance(value, list):
            raise DataError(
                f"{at}: {column} are {_shown(value)}; give a list, or a column for each: --task.choices A B"
            )
        if len(value) < 2:
            raise DataError(f"{at}: {column} are {len(value)}; give at least two to choose from")
        return tuple(self._text(each, f"alternative {number} ({column.called})") for number, each in enumerate(value))

    def _text(self, value: object, called: str) -> str:
        if not isinstance(value, str):
            raise DataError(f"{self.at}: {called} is {_shown(value)}, no string; give a string")
        if not value.strip():
            # An empty text is a fact of many data sets and no reason to stop: it is counted and read as unknown.
            error = DataError(f"{self.at}: {called} is empty; fill it, or leave the row out")
            if self.report is None:
                raise error
            self.report.read_empty(error, self.origin)
            return ""
        return value


def _label(value: object, called: str, at: str) -> str:
    """Returns a label as a text file would spell it, without the white space around it."""
    if value is None:
        raise DataError(f"{at}: {called} is missing; give every example one, or leave the row out")
    # As JSON spells it; a bool is an int in Python, so it comes first.
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        raise DataError(f"{at}: {called} is {_shown(value)}; give a string, a number, true or false")
    if not (label := str(value).strip()):
        raise DataError(f"{at}: {called} is empty; fill it, or leave the row out")
    if label[0] == "[" and _is_list(label):
        raise DataError(f"{at}: {called} is {label[:40]!r}, a list written as text; give every example one label")
    return label


def _is_list(label: str) -> bool:
    """Returns whether a label is a list of strings written as text, or one of several numbers: as a list, it is no
    label in a *.jsonl either."""
    try:
        items = written_list(label, numbers=True)
    except ValueError:
        return True
    # `[5]` may be a label as it is written; quotes, or several items, make a list.
    return items is not None and (len(items) != 1 or "'" in label or '"' in label)


def _shown(value: object) -> str:
    kinds = {dict: "an object", list: "a list", bool: "true or false", str: "a string", type(None): "null"}
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"the number {str(value)[:40]}"
    return kinds.get(type(value), f"of type {type(value).__name__}")
