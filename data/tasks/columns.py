"""Which column of a table holds the text, the second text, the label or the choices: as named, or by its usual name."""

import logging
import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from contexture.data.config import TaskConfig
from contexture.data.errors import DataError, did_you_mean
from contexture.data.tasks.odd_rows import Column, Columns
from contexture.data.tasks.tables import Table, listed
from contexture.data.text import tfds

logger = logging.getLogger(__name__)

# Usual names of columns, in lower case.
_PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("text1", "text2"),
    ("first", "second"),
    ("text_a", "text_b"),
)
_TEXTS = ("text", "sentence", "review", "content", "question", "utterance", "query")
_LABELS = ("label", "category", "class", "intent", "target", "sentiment", "score", "gold_label")
_NUMBERS = ("score", "label", "target", "similarity")
_WORDS = ("tokens", "words", "text", "sentence")
_TAGS = ("tags", "ner_tags", "upos", "pos_tags", "ner", "labels", "label")
_CONTEXTS = ("text", "context", "ctx", "premise", "question", "goal", "story", "sentence")
_CHOICES = ("choices", "endings", "options", "alternatives")
_CHOICE = re.compile(r"(choice|ending|option|alternative|solution|sol)_?(\d+)")


def _columns(table: Table, task: TaskConfig, labelled: bool) -> Columns:
    """Which columns are read: those that the task names, or those with usual names."""
    tagged = task.kind == "tag"
    text, second, label = task.text or table.usual[0], task.second, task.label or table.usual[1]
    names = _Names(table, task.kind, labelled)
    if table.names is None and not (text and (label or not labelled) and (task.choices or task.kind != "choice")):
        raise DataError(f"{table.where}: a file without a header wants positions; give {names.positions}")
    if labelled and table.usual[0] and table.width == 1:
        raise DataError(f"{table.head}: 1 column where a word and its tag are wanted; give every word its tag")
    choices = task.choices or (names.choices((text, label)) if task.kind == "choice" else ())
    if choices:
        text = text or names.one("text", "text", _CONTEXTS, (*choices, label))
    elif not text and tagged:
        text = names.one("words", "text", _WORDS, (label,), prefer=True)
    elif not text and second:
        text = names.one("text", "text", (*_TEXTS, *(first for first, _ in _PAIRS)), (second, label))
    elif not text:
        text, second = names.texts((label,))
    role = "words" if tagged else "first text" if second else "text"
    columns = [names.column(text, role, "text")]
    columns += [names.column(second, "second text", "second")] if second else []
    if len(choices) == 1:
        columns.append(names.column(choices[0], "alternatives", "choices"))
    else:
        columns += [names.column(name, f"alternative {n}", "choices") for n, name in enumerate(choices)]
    if labelled:
        role, usual = {"tag": ("tags", _TAGS), "regress": ("label", _NUMBERS)}.get(task.kind, ("label", _LABELS))
        label = label or names.one(role, "label", usual, (text, second, *choices), prefer=usual is not _LABELS)
        columns.append(names.column(label, role, "label"))
    if choices:
        names.check_apart(columns)
    if not task.text or (labelled and not task.label) or choices != task.choices:
        name = table.where if table.where.startswith(tfds.PREFIX) else Path(table.where).name
        logger.info(f"{name}: " + ", ".join(f"{column.role} from {column.called}" for column in columns))
    more = columns[1 : 1 + len(choices)]
    return Columns(columns[0], columns[1] if second else None, tuple(more), columns[-1] if labelled else None, tagged)


class _Names:
    """Finds columns of a table, by what the task calls them or by their usual names, and says what is amiss."""

    def __init__(self, table: Table, kind: str, labelled: bool) -> None:
        self.table, self.names = table, table.names or ()
        self.there = f"the columns are {listed(self.names)}" if self.names else "there are no columns"
        texts, label = ("--task.text 1 --task.choices 2 3", 4) if kind == "choice" else ("--task.text 1", 2)
        self.positions = f"{texts} --task.label {label}" if labelled else f"{texts} --task.header no"
        self.hint = f"; if this line is no header, give positions: {self.positions}" if table.headed else ""

    def column(self, asked: str, role: str, option: str) -> Column:
        """A column by its name or its position. Raises: DataError where there is no such column."""
        table, places = self.table, [place for place, name in enumerate(self.names) if name == asked]
        if len(places) == 1:
            return Column(role, places[0] if table.width else asked, f"column {asked!r}")
        if places:
            several = " or ".join(str(place + 1) for place in places)
            raise DataError(f"{table.head}: several columns are called {asked!r}; give the position, {several}")
        if not asked.isdecimal() and table.names is None:
            raise DataError(
                f"{table.where}: columns have no names here, and --task.{option} is {asked!r}; give a position, from 1"
            )
        if not asked.isdecimal() or not table.width:
            raise self._no_column(asked)
        if not 1 <= int(asked) <= table.width:
            raise DataError(
                f"{table.head}: --task.{option} is {asked} where there are 1 to {table.width}; give another"
            )
        place = int(asked) - 1
        return Column(role, place, f"column {asked}" + (f" {self.names[place]!r}" if self.names else ""))

    def _no_column(self, asked: str) -> DataError:
        lowered = {name.lower(): name for name in self.names}
        near = did_you_mean(repr(asked), map(repr, self.names))
        if asked.lower() in lowered:
            near = f" (did you mean {lowered[asked.lower()]!r}?)"
        hint = "" if near else self.hint
        return DataError(f"{self.table.head}: there is no column {asked!r}{near}; {self.there}{hint}")

    def one(self, role: str, option: str, usual: Sequence[str], used: Sequence[str], prefer: bool = False) -> str:
        """The column with a usual name that is not used yet; of several the first, where that is to be preferred.

        Raises: DataError where there is none, or several.
        """
        found = self._usual(usual, used)
        if len(found) > 1 and not prefer:
            raise self._unclear(role, option, found)
        if not found:
            raise DataError(
                f"{self.table.head}: no column has a usual name of the {role} ({', '.join(usual[:3])}, …); "
                f"{self.there}; name it with --task.{option}{self.hint}"
            )
        return found[0]

    def texts(self, used: Sequence[str]) -> tuple[str, str]:
        """The text and "", or the two texts of a pair."""
        found = ((self._usual([first], used), self._usual([second], used)) for first, second in _PAIRS)
        pairs = [(first[0], second[0]) for first, second in found if first and second]
        if not pairs:
            return self.one("text", "text", _TEXTS, used), ""
        others = self._usual(_TEXTS, (*pairs[0], *used))
        if len(pairs) > 1 or others:
            raise self._unclear("text", "text", list(dict.fromkeys([*chain(*pairs), *others])))
        return pairs[0]

    def choices(self, used: Sequence[str]) -> tuple[str, ...]:
        """The column of a list of alternatives, or the columns of one each, numbered from 0 or 1."""
        found: dict[str, dict[int, str]] = {name: {0: name} for name in self._usual(_CHOICES, used)}
        for name in self.names:
            match = _CHOICE.fullmatch(name.lower())
            if match:
                group, number = found.setdefault(match[1], {}), int(match[2])
                if number in group:
                    raise self._unclear(f"alternative {number}", "choices", [group[number], name])
                group[number] = name
        if not found:
            raise DataError(
                f"{self.table.head}: no columns have usual names of alternatives (choices; choice1 and choice2; …); "
                f"{self.there}; name them with --task.choices{self.hint}"
            )
        if len(found) > 1:
            several = [name for group in found.values() for name in group.values()]
            raise self._unclear("alternatives", "choices", several)
        (group,) = found.values()
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
                if other.key == column.key:
                    raise DataError(
                        f"{self.table.head}: {column.called} is both the {other.role} and the {column.role}; "
                        "give each a column of its own: --task.text, --task.choices, --task.label"
                    )

    def _usual(self, usual: Sequence[str], used: Sequence[str]) -> list[str]:
        """The columns with these names, in the order of these."""
        return [there for name in usual for there in self.names if there.lower() == name and there not in used]

    def _unclear(self, role: str, option: str, found: Sequence[str]) -> DataError:
        return DataError(f"{self.table.head}: {listed(found)} may each be the {role}; name it with --task.{option}")
