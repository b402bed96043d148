"""Where a word occurs in sentences, and which sense it has there; files of sentences."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from contexture.analysis.column_options import column_options
from contexture.data.config import TaskConfig
from contexture.data.errors import DataError
from contexture.data.plain_files import check_plain, inner_suffix
from contexture.data.tasks.read.examples import Text
from contexture.data.tasks.read.read_examples import FORMATS, check_sources, examples, open_table
from contexture.data.text.lines import LONGEST_TEXT, lines
from contexture.data.text.sources import check_plain_text
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.word_level import StaticWords, Words, spaced_words

T = TypeVar("T")
_USUAL = ("sense", "senses", "sense_key", "word_sense", "synset")
"""Usual names of a column of senses, in lower case."""
_TABLES = tuple(suffix for suffix in FORMATS if suffix not in (".conll", ".conllu"))
SAMPLED_WORDS = 1000
"""Words whose mean cosine is the baseline of a layer (Ethayarajh 2019, section 4.1)."""


@dataclass(frozen=True)
class Sentence:
    """A sentence of the input.

    Args:
        text: the sentence.
        sense: the sense of the word in it; None if senses are not given.
        origin: "file:line", for errors.
    """

    text: str
    sense: str | None
    origin: str


@dataclass(frozen=True)
class Occurrence:
    """The word `words[place]` of a sentence; `spaced` says which words have white space before them."""

    sentence: Sentence
    words: Sequence[str]
    spaced: Sequence[bool]
    place: int


@dataclass
class Sample(Generic[T]):
    """A uniform random sample of at most `size` items, kept in their order (Vitter's algorithm R)."""

    size: int
    seed: int
    count: int = 0
    """How many items were offered."""
    _kept: list[tuple[int, T]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def offer(self, item: T) -> None:
        if len(self._kept) < self.size:
            self._kept.append((self.count, item))
        # Item n is kept with probability size / n, in the place of a random one.
        elif (place := self._random.randrange(self.count + 1)) < self.size:
            self._kept[place] = self.count, item
        self.count += 1

    def items(self) -> list[T]:
        return [item for _, item in sorted(self._kept, key=lambda each: each[0])]


def check_files(files: Sequence[str], text: str, sense: str) -> None:
    """Raises: DataError when a file is missing or of another kind, or columns are named of a file without columns."""
    for file in files:
        if inner_suffix(file) in _TABLES or Path(file).is_dir():
            check_sources([file], "input")
            continue
        check_plain(file)
        if not Path(file).is_file():
            raise DataError(f"{file}: input names no such file; check the path")
        check_plain_text(Path(file), "a sentence")
        if text or sense:
            option = "--text" if text else "--sense"
            raise DataError(
                f"{file}: {option} names a column, and each line of this file is a sentence; give *.tsv, *.csv or "
                f"*.jsonl, or leave {option} out"
            )


def read_sentences(
    files: Iterable[str], text: str = "", sense: str = "", header: Literal["auto", "yes", "no"] = "auto"
) -> Iterator[Sentence]:
    """Yields the sentences of files: the rows of a table, the non-empty lines of any other file.

    Args:
        files: the files.
        text: the column of sentences, by name or by position from 1; empty: the one with a usual name.
        sense: the column of senses, likewise; a table without one gives sentences without senses.
        header: whether tables begin with the names of their columns.

    Raises:
        DataError: with file:line, when a row cannot be read, a column is missing, or a sense is empty.
    """
    for file in files:
        if inner_suffix(file) in _TABLES or Path(file).is_dir():
            yield from _rows(file, text, sense, header)
            continue
        for number, line in lines(Path(file), most=LONGEST_TEXT):
            if line.strip():
                yield Sentence(line.strip(), None, f"{file}:{number}")


def _rows(file: str, text: str, sense: str, header: Literal["auto", "yes", "no"]) -> Iterator[Sentence]:
    task = TaskConfig(kind="classify", text=text, label=sense, header=header)
    if not sense:
        names = open_table(file, task).names or ()
        sense = next((name for usual in _USUAL for name in names if name.lower() == usual), "")
        task = TaskConfig(kind="classify", text=text, label=sense, header=header)
    with column_options(label="sense"):
        for example in examples(file, task, labelled=bool(sense)):
            if not isinstance(example, Text):
                raise DataError(f"{file}: several columns may be the text; name it with --text")
            # The id of an example is the name of its file and its line; a message has the path.
            line = example.origin.rpartition(":")[2]
            yield Sentence(example.text.strip(), example.label, f"{file}:{line}")


def given_sentences(texts: Sequence[object], senses: Sequence[object] | None) -> list[Sentence]:
    """Returns sentences that are given in Python.

    Raises:
        DataError: when something is no text, or there are more or fewer senses than texts.
    """
    if senses is not None and len(senses) != len(texts):
        raise DataError(f"{len(texts):,} texts and {len(senses):,} senses; give each text one")
    sentences: list[Sentence] = []
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(f"text {number}: {str(text)[:60]!r} is no text; give strings")
        sentences.append(Sentence(text.strip(), None if senses is None else str(senses[number]), f"text {number}"))
    return sentences


def sentence_words(tokenizer: Any) -> Callable[[str], tuple[Sequence[str], Sequence[bool]]]:
    """Returns the function text → (its words, which of them have white space before them).

    An ELMo's vocabulary splits text by its own rule; for other models punctuation marks are words of their own.
    """
    if isinstance(tokenizer, Words | StaticWords):

        def own(text: str) -> tuple[Sequence[str], Sequence[bool]]:
            words = tokenizer.words(text)
            return words, [n > 0 for n in range(len(words))]

        return own

    def split(text: str) -> tuple[Sequence[str], Sequence[bool]]:
        words = spaced_words(text)
        return [word for word, _ in words], [spaced for _, spaced in words]

    return split


def check_word(word: str, tokenizer: Tokenizer) -> None:
    """Raises: DataError when `word` is not one word as the run splits text."""
    words, _ = sentence_words(tokenizer)(word)
    if list(words) != [word]:
        parts = f", and {word!r} is {len(words)}: {', '.join(words)}" if words else ""
        raise DataError(f"the word is to be one word as the run splits text{parts}; give one")


@dataclass(frozen=True)
class WordOccurrences:
    """Where a word occurs in sentences.

    Args:
        occurrences: a uniform sample of all occurrences, at most as many as were asked for.
        count: how many occurrences there are.
        others: a uniform sample of all words, for the baseline of a layer.
    """

    occurrences: list[Occurrence]
    count: int
    others: list[Occurrence]


def collect(
    sentences: Iterable[Sentence],
    word: str,
    tokenizer: Tokenizer,
    *,
    ignore_case: bool = False,
    max_occurrences: int = 1000,
    baseline: bool = False,
    seed: int = 0,
) -> WordOccurrences:
    """Returns where a word occurs, in memory that does not grow with the number of sentences.

    Args:
        sentences: read once.
        word: one word, as the run splits text.
        tokenizer: the run's.
        ignore_case: take the word in upper and lower case.
        max_occurrences: the most occurrences to keep.
        baseline: whether to sample words of all kinds too.
        seed: of both samples.

    Raises:
        DataError: when `word` is not one word, or occurs less than twice.
    """
    check_word(word, tokenizer)
    split = sentence_words(tokenizer)
    sample = Sample[Occurrence](max_occurrences, seed)
    # A sample of size 0 keeps nothing: without a baseline no other words are held in memory.
    others = Sample[Occurrence](SAMPLED_WORDS if baseline else 0, seed)
    sought, other_case, read = word.casefold(), 0, 0
    for sentence in sentences:
        read += 1
        words, spaced = split(sentence.text)
        for place, each in enumerate(words):
            if each == word or (each.casefold() == sought and ignore_case):
                sample.offer(Occurrence(sentence, words, spaced, place))
            elif each.casefold() == sought:
                other_case += 1
            if baseline:
                others.offer(Occurrence(sentence, words, spaced, place))
    if sample.count < 2:
        how = "never occurs" if not sample.count else "occurs only once, and there is nothing to compare it with,"
        mend = (
            f"it occurs {other_case:,} times in another case: --ignore-case takes these too"
            if other_case
            else "give more sentences that hold it, or another word"
        )
        raise DataError(f"the word {word!r} {how} in the {read:,} sentences of the input; {mend}")
    return WordOccurrences(sample.items(), sample.count, others.items())
