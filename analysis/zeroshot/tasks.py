"""The tasks of `contexture zeroshot`: a row each in ZERO_SHOT. Needs no jax until a task is read."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from contexture.data.plain_files import inner_suffix
from contexture.data.text.sources import check_lines, lines_of
from contexture.train.evaluation.request import Strings, several

if TYPE_CHECKING:
    from contexture.analysis.trained_model import TrainedModel
    from contexture.analysis.zeroshot.conversations import Question
    from contexture.analysis.zeroshot.files import Questions
    from contexture.analysis.zeroshot.minimal_pairs import MinimalPair
    from contexture.analysis.zeroshot.referenced_texts import ReferencedTexts, Shots
    from contexture.data.cancel import CancelToken

Task = Literal["lambada", "cbt", "choice", "blimp", "wikitext", "lm1b", "qa", "summarize", "translate"]


@dataclass(frozen=True, kw_only=True)
class ZeroShotOptions:
    """What a zero-shot evaluation reads and how."""

    task: Task
    """The task. lambada: the last word of each passage. cbt: the Children's Book Test. choice: which alternative fits a
    text, or its blank (XXXXX or _). blimp: which sentence of a minimal pair is acceptable. wikitext, lm1b: perplexity
    by word of a tokenised corpus. A GPT writes its answers in qa: questions about documents (CoQA, SQuAD), summarize:
    summaries after TL;DR:, and translate."""
    input: Strings
    """The files of the task, as their publishers ship them. lambada: a passage in each line, or in `text` of a *.jsonl.
    cbt: numbered lines. choice: rows with text, alternatives and label. blimp: *.jsonl, or a folder of them. wikitext,
    lm1b: tokenised text. qa: a *.json in CoQA's or SQuAD's form. summarize, translate: rows with text and reference."""
    shots: int = 0
    """Show so many answered examples before each question of a choice, or translated ones before each sentence, drawn
    from --examples."""
    examples: Strings = ()
    """Files of answered examples for --shots, in the form of --input."""
    group: str = ""
    """A column of a choice, such as the gender of a pronoun: each of its values has an accuracy of its own."""
    text: str = ""
    """The column of a choice's text, of the article, or of the sentence to translate. Without it, one with a usual
    name."""
    references: Strings = ()
    """The column of the right summary or translation, or several columns. Without it, one with a usual name."""
    choices: tuple[str, ...] = ()
    """The columns of a choice's alternatives."""
    label: str = ""
    """The column of the right alternative."""
    labels: tuple[str, ...] = ()
    """The names of the alternatives in their order, where they are not 0, 1, …: 1 2, or A B C D."""
    header: Literal["auto", "yes", "no"] = "auto"
    """Whether tsv and csv begin with the names of their columns."""
    length: int = 0
    """Tokens of a window of a corpus; 0 is as in training."""
    stride: int = 0
    """New tokens in each window of a corpus; 0 is all."""
    tokens: int = 0
    """Most tokens to write for each example; 0 is 50 for qa, 100 for summarize, 128 for translate."""
    bleu_tokenize: Literal["13a", "intl", "zh", "char", "none"] = "13a"
    """How sacrebleu cuts translations into tokens; zh or char where they are Chinese."""
    batch: int = 16
    """Texts at a time."""
    seed: int = 0
    """The seed by which examples are drawn, and summaries sampled."""

    def __post_init__(self) -> None:
        self._check_meaning()
        if self.shots < 0:
            raise ValueError(f"shots={self.shots} is not a number of examples")
        if bool(self.shots) != bool(self.examples):
            raise ValueError("give --shots N and the files to draw them from, --examples FILE, or neither")
        if self.batch < 1:
            raise ValueError(f"batch={self.batch} is not a positive number of texts")
        if self.tokens < 0:
            raise ValueError(f"tokens={self.tokens} is not a number of tokens")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed={self.seed} is not in [0, 2^31)")

    def _check_meaning(self) -> None:
        """Refuses options that have no meaning for the task."""
        for field in fields(self):
            tasks = [name for name, task in ZERO_SHOT.items() if field.name in task.options]
            if tasks and self.task not in tasks and getattr(self, field.name) != field.default:
                *others, last = tasks
                of = f"{', '.join(others)} and {last}" if others else last
                option = field.name.replace("_", "-")
                raise ValueError(f"{option}= has no meaning for --task {self.task}; it is for {of}")


@dataclass(frozen=True)
class ZeroShotTask:
    """A task that a pretrained run is evaluated on without training.

    Args:
        read: options → the questions of its files. It runs before the run is opened, so that a mistake in a file shows
            at once.
        score: (model, questions, options, cancel) → figures, and under `answers` the rows of --to.
        options: the names of options that have a meaning for this task alone or for some.
        writes: the model writes its answers, which a GPT alone can.
    """

    read: Callable[[ZeroShotOptions], Any]
    score: "Callable[[TrainedModel, Any, ZeroShotOptions, CancelToken], dict[str, Any]]"
    options: tuple[str, ...] = ()
    writes: bool = False


def _read_passages(options: ZeroShotOptions) -> list[str]:
    from contexture.analysis.zeroshot.files import passages
    from contexture.data.tasks.read.read_examples import check_sources

    files = several(options.input)
    for file in files:
        if inner_suffix(file) == ".jsonl":
            check_sources([file], "--input")
        else:
            check_lines(Path(file), "a passage")
    return [text for file in files for text in passages(file)]


def _lambada(
    model: "TrainedModel", passages: list[str], options: ZeroShotOptions, cancel: "CancelToken"
) -> dict[str, Any]:
    from contexture.analysis.zeroshot.lambada import lambada

    return lambada(model, passages, batch=options.batch, cancel=cancel)


def _corpus(options: ZeroShotOptions) -> Iterator[str]:
    files = [Path(file) for file in several(options.input)]
    for file in files:
        check_lines(file, "text")
    # The corpus itself is read while it is scored: it may be larger than memory.
    return (line for file in files for line in lines_of(file, "text"))


def _word_perplexity(
    model: "TrainedModel", corpus: Iterator[str], options: ZeroShotOptions, cancel: "CancelToken"
) -> dict[str, Any]:
    from contexture.analysis.zeroshot.word_perplexity import word_perplexity

    given: dict[str, Any] = {"length": options.length, "stride": options.stride, "batch": options.batch}
    form: Any = options.task  # the two rows below that have this function
    return word_perplexity(model, corpus, form, cancel=cancel, **given)


def _read_choices(options: ZeroShotOptions, files: tuple[str, ...], group: str = "") -> "Questions":
    from contexture.analysis.zeroshot.files import questions
    from contexture.data.config import TaskConfig

    columns = {name: getattr(options, name) for name in ("text", "choices", "label", "labels", "header")}
    return questions(files, TaskConfig(kind="choice", **columns), group)


def _read_books(options: ZeroShotOptions, files: tuple[str, ...], group: str = "") -> "Questions":
    from contexture.analysis.zeroshot.files import Questions, book_questions

    for file in files:
        check_lines(Path(file), "a sentence")
    read = [book_questions(file) for file in files]
    return Questions(
        *([x for each in read for x in getattr(each, name)] for name in ("texts", "choices", "labels", "groups"))
    )


def _with_shots(
    read: "Callable[[ZeroShotOptions, tuple[str, ...], str], Questions]",
) -> "Callable[[ZeroShotOptions], Questions]":
    """Returns the reader of a task of choices: each text is preceded by the answered examples that --shots asks for."""

    def read_all(options: ZeroShotOptions) -> "Questions":
        from contexture.analysis.zeroshot.files import with_shots

        asked = read(options, several(options.input), options.group)
        if not options.shots:
            return asked
        shown = read(options, several(options.examples), "")
        return replace(asked, texts=with_shots(asked, shown, options.shots, options.seed))

    return read_all


def _choose(
    model: "TrainedModel", asked: "Questions", options: ZeroShotOptions, cancel: "CancelToken"
) -> dict[str, Any]:
    from contexture.analysis.zeroshot.alternatives import choose

    given = asked.texts, asked.choices, asked.labels
    result = choose(model, *given, asked.groups, batch=options.batch, cancel=cancel)
    chosen, log_probs = result.pop("chosen"), result.pop("log_probs")
    rows = (
        {"text": text, "choices": choices, "label": label, "chosen": int(own), "log_probs": scores.tolist()}
        for text, choices, label, own, scores in zip(*given, chosen, log_probs, strict=True)
    )
    return {**result, **_shots(options), "answers": rows}


def _read_pairs(options: ZeroShotOptions) -> "list[MinimalPair]":
    from contexture.analysis.zeroshot.minimal_pairs import pair_files, read_pairs

    return read_pairs(pair_files(several(options.input)))


def _minimal_pairs(
    model: "TrainedModel", pairs: "list[MinimalPair]", options: ZeroShotOptions, cancel: "CancelToken"
) -> dict[str, Any]:
    from contexture.analysis.zeroshot.minimal_pairs import minimal_pairs

    return minimal_pairs(model, pairs, batch=options.batch, cancel=cancel)


def _read_conversations(options: ZeroShotOptions) -> "list[Question]":
    from contexture.analysis.zeroshot.conversations import read_questions

    return read_questions(several(options.input))


def _answer(
    model: "TrainedModel", questions: "list[Question]", options: ZeroShotOptions, cancel: "CancelToken"
) -> dict[str, Any]:
    from contexture.analysis.zeroshot.written_answers import answer_questions

    return answer_questions(model, questions, tokens=options.tokens, batch=options.batch, cancel=cancel)


def _texts(
    options: ZeroShotOptions, task: Literal["summarize", "translate"], option: Literal["input", "examples"] = "input"
) -> "ReferencedTexts":
    from contexture.analysis.zeroshot.referenced_texts import read_referenced_texts

    return read_referenced_texts(
        several(getattr(options, option)),
        task,
        text=options.text,
        references=several(options.references),
        header=options.header,
        option=f"--{option}",
    )


def _read_articles(options: ZeroShotOptions) -> "ReferencedTexts":
    return _texts(options, "summarize")


def _summarize(
    model: "TrainedModel", articles: "ReferencedTexts", options: ZeroShotOptions, cancel: "CancelToken"
) -> dict[str, Any]:
    from contexture.analysis.zeroshot.written_answers import summarize

    return summarize(model, articles, tokens=options.tokens, seed=options.seed, batch=options.batch, cancel=cancel)


def _read_translations(options: ZeroShotOptions) -> "tuple[ReferencedTexts, Shots]":
    from contexture.analysis.zeroshot.referenced_texts import NO_SHOTS, Shots

    asked, shown = _texts(options, "translate"), NO_SHOTS
    if options.shots:
        shown = Shots(_texts(options, "translate", "examples"), options.shots, options.seed)
    return asked, shown


def _translate(
    model: "TrainedModel", texts: "tuple[ReferencedTexts, Shots]", options: ZeroShotOptions, cancel: "CancelToken"
) -> dict[str, Any]:
    from contexture.analysis.zeroshot.written_answers import translate

    given: dict[str, Any] = {"tokens": options.tokens, "batch": options.batch, "tokenize": options.bleu_tokenize}
    return translate(model, *texts, cancel=cancel, **given) | _shots(options)


def _shots(options: ZeroShotOptions) -> dict[str, int]:
    """Returns what a result says of its shots: nothing without any."""
    return {"shots": options.shots} if options.shots else {}


_CHOICES = ("shots", "examples", "to", "seed")
_COLUMNS = ("text", "header")
_CORPUS = ZeroShotTask(_corpus, _word_perplexity, ("length", "stride"))
_WRITTEN = ("to", "tokens")
ZERO_SHOT: dict[str, ZeroShotTask] = {
    "lambada": ZeroShotTask(_read_passages, _lambada),
    "choice": ZeroShotTask(
        _with_shots(_read_choices), _choose, (*_CHOICES, *_COLUMNS, "group", "choices", "label", "labels")
    ),
    "cbt": ZeroShotTask(_with_shots(_read_books), _choose, _CHOICES),
    "blimp": ZeroShotTask(_read_pairs, _minimal_pairs, ("to",)),
    "wikitext": _CORPUS,
    "lm1b": _CORPUS,
    "qa": ZeroShotTask(_read_conversations, _answer, _WRITTEN, writes=True),
    "summarize": ZeroShotTask(_read_articles, _summarize, (*_WRITTEN, *_COLUMNS, "references", "seed"), writes=True),
    "translate": ZeroShotTask(
        _read_translations,
        _translate,
        (*_WRITTEN, *_COLUMNS, "references", "shots", "examples", "bleu_tokenize", "seed"),
        writes=True,
    ),
}
"""By the name of --task."""
