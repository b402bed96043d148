"""The options of the commands that use a run. Needs no jax.

In a request, `step=""` is the checkpoint that answers for the run (`contexture.open`).
"""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal

from contexture.analysis.options import GenerateOptions
from contexture.analysis.pooling import Pool
from contexture.requests.arguments import (
    DIR,
    FILE,
    FILES,
    POSITIONAL,
    RUN,
    STEP,
    TEXT,
    TEXTS,
    Arg,
    Place,
    check_effect,
    check_place,
)
from contexture.train.evaluation.request import EvaluationOptions, Strings


@dataclass(frozen=True, kw_only=True)
class EvaluationArgs(EvaluationOptions):
    """Held-out metrics of runs, over the whole set, each example once."""

    runs: Annotated[tuple[str, ...], Arg(metavar="RUN …"), POSITIONAL]
    """The folder of a run, or of several, which are evaluated one after the other."""
    dev: Annotated[Strings, Arg(aliases=("--task.dev",), metavar="FILE …")] = ()
    step: Annotated[tuple[str, ...], Arg(metavar="N …|best|all")] = ()
    to: Annotated[str, DIR] = ""
    submission: Annotated[str, DIR] = ""
    figures: Annotated[str, DIR] = ""
    table: Annotated[str, FILE] = ""
    """A file to write the table of runs and checkpoints to, a row for each: *.tex (LaTeX), *.csv or *.md."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_effect(self, ("table",), not self.submission, "what is measured; leave --submission out")
        if self.table:
            check_place(self.table, self.dev, option="table")


@dataclass(frozen=True, kw_only=True)
class PredictionRequest:
    """Predictions for new examples: of a file, a JSON line each, or for one that is given here."""

    run: Annotated[str, RUN, POSITIONAL]
    """The folder of a fine-tuned run."""
    input: Annotated[str, FILE] = ""
    """A file of examples, labelled or not, of any size. Without it, --text is the example itself."""
    to: Annotated[str | None, FILE] = None
    """The file to write the predictions to, a JSON object per line."""
    overwrite: bool = False
    """Replace the file --to, where it exists, once the new one is complete."""
    text: Annotated[str, TEXT] = ""
    """One text, or its words, or the question. With --input: the column of it, where it has another name than in the
    training set."""
    second: Annotated[str, TEXT] = ""
    """The second text of a pair, or the context of a question. With --input: the column of it."""
    choices: Annotated[tuple[str, ...], TEXTS] = ()
    """The alternatives. With --input: the columns of them."""
    header: Literal["", "auto", "yes", "no"] = ""
    """Whether tsv and csv begin with the names of their columns. Without it, as in training."""
    step: Annotated[str, STEP] = ""
    """The checkpoint to use: its step, or `best`. Without it, the best of a run with --evaluate.patience, else the
    newest good one."""
    batch: int = 64
    """Examples at a time."""

    def __post_init__(self) -> None:
        if self.to is not None:
            check_place(self.to, self.input)
        if self.input and not self.to:
            raise ValueError("predict needs --to FILE: contexture predict RUN --input FILE --to FILE")
        if self.to and not self.input:
            raise ValueError("to= is for the predictions of a file; give it as --input FILE, or leave --to out")
        if not self.input and not self.text.strip():
            raise ValueError("give --input FILE and --to FILE, or one example: --text TEXT")
        if not self.input and self.header:
            raise ValueError("header= is for a file; give it as --input FILE, or leave --header out")
        if self.overwrite and not self.to:
            raise ValueError("overwrite= is for a file of predictions; give --to FILE too, or leave --overwrite out")
        if self.batch < 1:
            raise ValueError(f"batch={self.batch} is not a positive number of examples")


@dataclass(frozen=True)
class FillRequest:
    """The most probable tokens for each [MASK] of a text, from a masked language model."""

    run: Annotated[Place, RUN, POSITIONAL]
    """The folder of a pretrained BERT."""
    text: str
    """A text with one [MASK] or several."""
    _: KW_ONLY
    top: int = 5
    """How many tokens to list for each [MASK]."""
    step: Annotated[str, STEP] = ""
    """The checkpoint to use: its step, or `best`. Without it, the best of a run with --evaluate.patience, else the
    newest good one."""


@dataclass(frozen=True)
class GenerationRequest(GenerateOptions):
    """Continuations of prompts, from a GPT."""

    run: Annotated[Place, RUN, POSITIONAL]
    """The folder of a pretrained GPT."""
    prompt: Annotated[Strings, TEXTS] = ()
    """A prompt or several; an empty one starts a document."""
    _: KW_ONLY
    input: Annotated[str, FILE] = ""
    """A file with a prompt in each line, in place of --prompt."""
    stop: Annotated[Strings, TEXTS] = ()
    step: Annotated[str, STEP] = ""
    """The checkpoint to use: its step, or `best`. Without it, the best of a run with --evaluate.patience, else the
    newest good one."""

    def __post_init__(self) -> None:
        check_effect(self, ("top_p_exclusive",), self.top_p < 1, "nucleus sampling; give --top-p 0.9")
        sampled = self.temperature > 0
        check_effect(self, ("top_k", "top_p"), sampled, "sampling, and --temperature 0 takes the likeliest; change it")
        given = isinstance(self.prompt, str) or bool(self.prompt)  # also one prompt that is empty
        if given == bool(self.input):
            raise ValueError("give --prompt TEXT, or --input FILE with a prompt in each line")
        super().__post_init__()


@dataclass(frozen=True)
class EmbeddingRequest:
    """Contextual vectors of the sentences, words or tokens of a text, line by line."""

    run: Annotated[Place, RUN, POSITIONAL]
    """The folder of a run of any family."""
    input: Annotated[Place, FILE]
    """A text file; each line is a sentence."""
    to: Annotated[Place, FILE]
    """The file to write the vectors to. *.npy, *.parquet or *.safetensors: a matrix, a row for each line's sentence.
    *.hdf5 or *.npz: an array for each line's words or tokens, with their names; hdf5 in the original ELMo's layout.
    *.tsv: a row for each vector. *.txt: the same in word2vec's text format, of words or tokens."""
    _: KW_ONLY
    of: Literal["auto", "sentences", "words", "tokens"] = "auto"
    """What has a vector. sentences: each line. words: what stands between spaces, a word of several tokens as their
    mean. tokens: what the model reads, a BERT's [CLS] and [SEP] too; of an ELMo its words, which may split punctuation
    off. auto: sentences in a matrix and in *.tsv, words in *.txt, tokens otherwise."""
    layers: str = "auto"
    """Layers to take: auto, last, all, or numbers such as `0,2`, where 0 is the words' own. auto: all in *.hdf5 and
    *.npz, last otherwise."""
    pool: Literal["auto", Pool] = "auto"
    """How the vectors of tokens become a sentence's. none: each word or token keeps its own, as --of says.
    mean: of all tokens. mean-words: without a BERT's [CLS] and [SEP]. last: the last of these. cls: a BERT's [CLS].
    auto: mean-words of sentences, none otherwise."""
    overwrite: bool = False
    """Replace the file, where it exists, once the new one is complete."""
    batch: int = 64
    """Lines at a time."""
    stateful: bool = False
    """Continue, in line n, the hidden state of line n - batch: for an ELMo, as the original's inference does."""
    step: Annotated[str, STEP] = ""
    """The checkpoint to use: its step, or `best`. Without it, the best of a run with --evaluate.patience, else the
    newest good one."""

    def __post_init__(self) -> None:
        check_place(self.to, self.input)
        if self.of in ("words", "tokens") and self.pool not in ("auto", "none"):
            raise ValueError(f"pool={self.pool} is for sentences, and --of {self.of} keeps each of them; leave one out")
        if self.of == "sentences" and self.pool == "none":
            raise ValueError("pool=none is for words and tokens, and --of sentences pools them; leave one out")


@dataclass(frozen=True)
class ScoreRequest:
    """How well a run predicts text: perplexity, a BERT's pseudo-perplexity, both directions of an ELMo."""

    run: Annotated[Place, RUN, POSITIONAL]
    """The folder of a pretrained run."""
    input: Annotated[Strings, FILES] = ()
    """The text to score: files, a folder of *.txt and *.jsonl, or TFDS sets (tfds:NAME)."""
    _: KW_ONLY
    text: Annotated[str, TEXT] = ""
    """The text itself, in place of --input."""
    to: Annotated[str, FILE] = ""
    """A page to write, *.html, that colours each token by its log-probability or its entropy. It loads nothing."""
    top: int = 5
    """How many guesses the page shows for each token."""
    documents: Literal["files", "blank_lines"] = "files"
    """What a document of a *.txt file is: the whole file, or the text between blank lines."""
    length: int = 0
    """Tokens of a window, a BERT's [CLS] and [SEP] too; 0 is as in training."""
    stride: int = 0
    """New tokens in each window, the others being context; 0 is all."""
    batch: int = 8
    """Windows, or an ELMo's sentences, at a time."""
    step: Annotated[str, STEP] = ""
    """The checkpoint to use: its step, or `best`. Without it, the best of a run with --evaluate.patience, else the
    newest good one."""

    def __post_init__(self) -> None:
        if self.to:
            check_place(self.to, self.input)
        check_effect(self, ("top",), bool(self.to), "the page; give --to page.html")
        check_effect(self, ("documents",), not self.text, "files; give --input FILE")
        if self.batch < 1:
            raise ValueError(f"batch={self.batch} is not a positive number of windows")
        given = (self.input,) if isinstance(self.input, str) else self.input
        if bool(given) == bool(self.text.strip()):
            raise ValueError("give --input FILE, or --text TEXT")
        if self.top < 1:
            raise ValueError(f"top={self.top} is not a positive number of guesses")
