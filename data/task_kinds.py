"""The kinds of tasks (task.kind): what their columns, stored rows and batches hold. Needs no jax."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["classify", "regress", "tag", "choice", "span"]
"""The names of KINDS."""


@dataclass(frozen=True)
class Role:
    """What a column is read for.

    Args:
        name: how messages call it.
        option: the option of a task that names the column.
        usual: names of such columns in published data sets, in lower case.
        prefer: of several columns with usual names the first in their order is taken; else the user must say which.
    """

    name: str
    option: str
    usual: tuple[str, ...]
    prefer: bool = False


@dataclass(frozen=True)
class TaskKind:
    """A kind of task, as its data are read, stored and batched. Its head is a row of `models.families.HEADS`, its
    loss one of `train.objectives.OBJECTIVES`, its metrics one of `train.evaluation.predictions.COLLECTORS`.

    Args:
        text: the column that a single text, or a pair's first one, is read from.
        label: the column of what is right.
        tuples: the columns of a row that Python gives as a tuple, by the tuple's length.
        answer: the field of a stored row that says what is right, or where that is found, and its type.
        batch: the arrays of answers in a batch, with their type and dims.
        options: the options of a task that have a meaning for this kind. `labels`: its answers are classes or tags,
            which get numbers.
    """

    text: Role
    label: Role
    tuples: dict[int, tuple[str, ...]]
    answer: tuple[str, str]
    batch: dict[str, str]
    options: frozenset[str]

    @property
    def has_classes(self) -> bool:
        """Whether an answer is one of several names: classes, tags or alternatives."""
        return "labels" in self.options


# The columns of the data sets of GLUE, SQuAD, RACE, SWAG, COPA, CoNLL and TFDS.
TEXTS = ("text", "sentence", "review", "content", "question", "utterance", "query")
USUAL_NUMBERS = ("score", "label", "target", "similarity")
_LABELS = ("label", "category", "class", "intent", "target", "sentiment", "score", "gold_label")
_WORDS = ("tokens", "words", "text", "sentence")
# In order of preference: CoNLL-2003 has both ner_tags and pos_tags, and is read for its names.
_TAGS = ("tags", "ner_tags", "upos", "pos_tags", "ner", "labels", "label")
_CONTEXTS = ("text", "context", "ctx", "startphrase", "premise", "question", "goal", "story", "sentence")

_TEXT, _LABEL = Role("text", "text", TEXTS), Role("label", "label", _LABELS)
_TEXT_OR_PAIR = {2: ("text", "label"), 3: ("text1", "text2", "label")}
_CLASS = ("label", "<i8")  # its number, -1 for none
# Two weights, since class weights count in the loss alone: an accuracy counts every valid example once.
_ONE_EACH = {"labels": "i32 B", "weights": "f32 B", "valid": "f32 B"}
KINDS: dict[str, TaskKind] = {
    "classify": TaskKind(
        text=_TEXT,
        label=_LABEL,
        tuples=_TEXT_OR_PAIR,
        answer=_CLASS,
        batch=_ONE_EACH,
        options=frozenset({"second", "symmetric", "windows", "labels", "class_weights"}),
    ),
    "regress": TaskKind(
        text=_TEXT,
        label=Role("label", "label", USUAL_NUMBERS, prefer=True),
        tuples=_TEXT_OR_PAIR,
        answer=("value", "<f8"),  # the number to predict, NaN for none
        # No `weights`: a number has no class to be weighed by.
        batch={"targets": "f32 B", "valid": "f32 B"},
        options=frozenset({"second", "symmetric"}),
    ),
    "tag": TaskKind(
        text=Role("words", "text", _WORDS, prefer=True),
        label=Role("tags", "label", _TAGS, prefer=True),
        tuples={2: ("words", "tags")},
        # Tags lie beside the tokens. The row has the number of the document that its sentence is read within, or -1.
        answer=("document", "<i8"),
        batch={"tags": "i32 BL", "tag_weights": "f32 BL", "valid": "f32 B"},
        options=frozenset({"labels", "class_weights"}),
    ),
    "choice": TaskKind(
        text=Role("text", "text", _CONTEXTS),
        label=_LABEL,
        tuples={3: ("text", "choices", "label")},
        answer=_CLASS,
        # Missing alternatives are 0 in `choices`, which masks their logits: none of them is ever predicted.
        batch={"choices": "f32 BA", **_ONE_EACH},
        options=frozenset({"choices", "labels", "class_weights"}),
    ),
    "span": TaskKind(
        text=Role("question", "text", ("question", "query"), prefer=True),
        label=Role("answers", "label", ("answers", "answer", "answer_text"), prefer=True),
        tuples={3: ("question", "context", "answers")},
        # A row is a window of its question's context; where the answer lies in it, `store.span_store` knows.
        answer=("question", "<i8"),
        batch={"starts": "i32 B", "ends": "i32 B", "weights": "f32 B", "valid": "f32 B"},
        options=frozenset({"second"}),
    ),
}
"""By task.kind. Of the arrays in a batch: labels and tags are numbers, 0 and -1 where there is none; starts and ends
are the places of the answer's first and last token in the sequence, 0 where it is not in this window; choices is 0
where an example has fewer alternatives than others; weights is the weight in the loss of an example, or of the piece
that a word is read by; valid is 0 where an example only fills up a batch."""


def kinds_with(option: str) -> tuple[str, ...]:
    """Returns the kinds that an option of a task has a meaning for."""
    kinds = tuple(name for name, kind in KINDS.items() if option in kind.options)
    assert kinds, f"no kind of task has an option {option}"
    return kinds
