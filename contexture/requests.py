"""One request type for each command that trains nothing: its options, with their help. Needs no jax.

In a request, `step=0` is the newest good checkpoint.
"""

from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

import tyro

from contexture.data.config import LearnedKind
from contexture.models.config import Sampling
from contexture.train.config import Run
from contexture.train.evaluation.request import EvaluationRequest, Strings

Place = str | Path
"""A file or a folder."""


def several(values: Strings) -> tuple[str, ...]:
    """Returns one string or several as a tuple."""
    return (values,) if isinstance(values, str) else tuple(values)


def _check_place(to: Place) -> None:
    """Raises: ValueError for an empty path, which an unset shell variable gives: it would be the current folder."""
    if not str(to).strip():
        raise ValueError("to= is empty; give --to a path")


@dataclass(frozen=True)
class NoOptions:
    """A command without options."""


@dataclass(frozen=True, kw_only=True)
class ShowRequest:
    """The resolved configuration and the parameter table; nothing runs."""

    what: tyro.conf.Positional[str]
    """A recipe or the folder of a run."""


@dataclass(frozen=True, kw_only=True)
class PlanRequest(Run):
    """What training a recipe takes of devices that need not be here: memory, time, what bounds it."""

    topology: str = ""
    """The devices: v5e:4x4, v5p:4x4x4, v6e:8x8, h100:1x8 (hosts × GPUs), h200:4x8, a100:1x8, cpu:8."""
    suggest: bool = False
    """Try meshes, microbatches, remat and attention, and rank what fits."""

    @property
    def run(self) -> Run:
        """The run to plan."""
        return Run(**{field.name: getattr(self, field.name) for field in fields(Run)})


@dataclass(frozen=True, kw_only=True)
class TokenizerRequest:
    """Learn a vocabulary from text."""

    kind: tyro.conf.Positional[LearnedKind]
    """BERT's word pieces, GPT-2's byte pairs, single characters, SentencePiece's unigrams or byte pairs, or ELMo's
    words."""
    input: tuple[str, ...]
    """Text: files, a folder of *.txt and *.jsonl, or TFDS sets (tfds:NAME)."""
    vocab_size: int = 30522
    """Most tokens."""
    to: str
    """The tokenizer's folder."""
    lowercase: bool = True
    """Lower-case and strip accents (wordpiece alone; all others keep text as it is)."""
    word_splitter: Literal["spaces", "punctuation"] = "spaces"
    """Of words: split text at spaces (tokenised text), or split punctuation off as well (raw text)."""

    def __post_init__(self) -> None:
        _check_place(self.to)


@dataclass(frozen=True, kw_only=True)
class PrepareRequest:
    """Tokenise text once into shards, which any number of runs may then read: --data.path FOLDER."""

    recipe: tyro.conf.Positional[str]
    input: tuple[str, ...]
    """Text: files, a folder of *.txt and *.jsonl, or TFDS sets (tfds:NAME)."""
    to: str
    """The shards' folder."""
    tokenizer: str = ""
    """A tokenizer folder or a published vocabulary; empty: learn the recipe's vocabulary on the text."""
    dev: tuple[str, ...] = ()
    """Held-out text, like input."""
    dev_fraction: float = 0.0
    """Instead of dev: hold out the end of each file."""

    def __post_init__(self) -> None:
        _check_place(self.to)


@dataclass(frozen=True)
class EvaluationArgs(EvaluationRequest):
    """Held-out metrics of a run, over the whole set, each example once."""

    run: tyro.conf.Positional[Place]
    dev: Annotated[Strings, tyro.conf.arg(aliases=["--task.dev"], metavar="FILE …")] = ()
    step: Annotated[tuple[str, ...], tyro.conf.arg(metavar="STEP …|best|all")] = ()


@dataclass(frozen=True, kw_only=True)
class PredictionRequest:
    """Predictions for new examples, a JSON line each."""

    run: tyro.conf.Positional[str]
    """The folder of a fine-tuned run."""
    input: str
    """A file of examples, labelled or not, of any size."""
    to: str
    """The file of predictions."""
    text: str = ""
    """The column of the text or the words, where it has another name than in the training set."""
    second: str = ""
    """The column of the pair's second text."""
    choices: tuple[str, ...] = ()
    """The columns of the alternatives."""
    header: Literal["", "auto", "yes", "no"] = ""
    """Whether tsv and csv begin with the names of their columns; empty: as in training."""
    step: int = 0
    """Another checkpoint than the newest."""
    batch: int = 64
    """Examples at a time."""

    def __post_init__(self) -> None:
        _check_place(self.to)
        if self.batch < 1:
            raise ValueError(f"batch={self.batch} is not a positive number of examples")


@dataclass(frozen=True)
class FillRequest:
    """The most probable tokens for each [MASK] of a text, from a masked language model."""

    run: tyro.conf.Positional[Place]
    """The folder of a pretrained run."""
    text: str
    """A text with one [MASK] or several."""
    _: KW_ONLY
    top: int = 5
    """Tokens for each."""
    step: int = 0
    """Another checkpoint than the newest."""


@dataclass(frozen=True)
class GenerationRequest:
    """Continuations of prompts, from a GPT."""

    run: tyro.conf.Positional[Place]
    """The folder of a pretrained run."""
    prompt: Annotated[Strings, tyro.conf.arg(metavar="TEXT …")] = ()
    """A prompt or several; an empty one starts a document."""
    _: KW_ONLY
    input: str = ""
    """Instead of prompt: a file with a prompt in each line."""
    tokens: int = 0
    """Tokens to generate, at most; 0: 64, or as many as the model takes."""
    temperature: float = 1.0
    """0: always the most probable token (greedy); 1: the model's own probabilities."""
    top_k: int = 0
    """Sample from the k most probable tokens; 0: from all."""
    top_p: float = 1.0
    """Sample from the most probable tokens that together reach this probability (nucleus sampling); 1: from all."""
    top_p_exclusive: bool = False
    """Leave out the token with which top-p is reached, as GPT-2's code does."""
    stop: Annotated[Strings, tyro.conf.arg(metavar="TEXT …")] = ()
    """Texts before which the generation ends."""
    seed: int = 0
    """Of the random numbers; the same seed gives the same text."""
    batch: int = 16
    """Prompts at a time."""
    step: int = 0
    """Another checkpoint than the newest."""

    def __post_init__(self) -> None:
        given = isinstance(self.prompt, str) or bool(self.prompt)  # also one prompt that is empty
        if given == bool(self.input):
            raise ValueError("give --prompt TEXT, or --input FILE with a prompt in each line")
        _ = self.sampling

    @property
    def sampling(self) -> Sampling:
        """How tokens are sampled. Raises: ValueError for options out of range."""
        return Sampling(self.temperature, self.top_k, self.top_p, self.top_p_exclusive)


@dataclass(frozen=True)
class EmbeddingRequest:
    """Contextual vectors of the words of a text, or of a BERT's or a GPT's tokens, line by line."""

    run: tyro.conf.Positional[Place]
    """The run's folder."""
    input: Place
    """A text file; each line is a sentence."""
    to: Place
    """The file of vectors: *.hdf5, a dataset for each line by its number, as the original's; or *.npz, alike."""
    _: KW_ONLY
    layers: str = "all"
    """all: [layers, words, width], the words' own first; last; or numbers, `0,2`."""
    pool: Literal["none", "mean", "mean-words", "last", "cls"] = "none"
    """none: a vector for every token, a BERT's [CLS] and [SEP] among them. Else one for a line: mean of all these
    tokens; mean-words, of those without [CLS] and [SEP]; last of those; cls, a BERT's [CLS]."""
    batch: int = 64
    """Lines at a time."""
    stateful: bool = False
    """Of an ELMo: line n continues the hidden state of line n - batch, as the original's inference does."""
    step: int = 0
    """Another checkpoint than the newest."""

    def __post_init__(self) -> None:
        _check_place(self.to)


@dataclass(frozen=True, kw_only=True)
class LayersRequest:
    """The weight of each layer in the mixes that fine-tuned runs have learned."""

    runs: tyro.conf.Positional[tuple[str, ...]]
    """Runs' folders: seeds of a task, or several tasks."""
    to: str = ""
    """A figure, *.png or *.svg: a bar for each layer and task, the spread over seeds upon it."""


@dataclass(frozen=True, kw_only=True)
class ImportRequest:
    """A published model as a run."""

    format: tyro.conf.Positional[Literal["hf", "bert-tf", "gpt2-tf", "gpt1-npy", "bilm"]]
    """hf: a BERT, ERNIE 1.0, GPT-1 or GPT-2 as transformers saves it. bert-tf: Google's checkpoint, bert_config.json,
    vocab.txt. gpt2-tf: OpenAI's checkpoint, hparams.json, encoder.json, vocab.bpe. gpt1-npy: OpenAI's ten shards,
    params_shapes.json, encoder_bpe_40000.json, vocab_40000.bpe. bilm: ELMo as bilm-tf has it, options.json and weights
    in hdf5."""
    path: tyro.conf.Positional[str]
    """The folder of its files."""
    to: str
    """The run's folder."""
    vocabulary: str = ""
    """Another vocabulary than the one beside the model. Of bilm: the words of a softmax to train; empty: those that lie
    beside the model, or none."""
    lowercase: Literal["auto", "yes", "no"] = "auto"
    """Of BERT: whether text is lower-cased; auto: what the files say, else no where the vocabulary has capitals."""
    gelu: Literal["erf", "tanh"] = "erf"
    """Of bert-tf: which gelu the model was trained with; its files do not say."""
    word_splitter: Literal["spaces", "punctuation"] = "spaces"
    """Of bilm: split text into words at spaces, as the original does with its tokenised text; or split punctuation off
    as well."""

    def __post_init__(self) -> None:
        _check_place(self.to)
        for name, usual, formats in (
            ("lowercase", "auto", ("hf", "bert-tf")),
            ("gelu", "erf", ("bert-tf",)),
            ("word_splitter", "spaces", ("bilm",)),
        ):
            if getattr(self, name) != usual and self.format not in formats:
                option = name.replace("_", "-")
                raise ValueError(f"--{option} has no meaning for {self.format}; it is for {' and '.join(formats)}")


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """A run as files that others read."""

    run: tyro.conf.Positional[str]
    """The run's folder."""
    format: tyro.conf.Positional[Literal["hf", "peft", "bilm", "stablehlo"]]
    """hf: what transformers loads. peft: the adapters and heads alone, which peft loads onto the base model as hf.
    bilm: ELMo as bilm-tf has it, options.json and weights in hdf5. stablehlo: a program that jax runs without this
    library, with its weights."""
    to: str
    """The folder of the files."""
    step: int = 0
    """Another checkpoint than the newest."""

    def __post_init__(self) -> None:
        _check_place(self.to)


@dataclass(frozen=True)
class ScoreRequest:
    """How well a GPT predicts text: perplexity per token and per word, bits per byte."""

    run: tyro.conf.Positional[Place]
    """The folder of a pretrained run."""
    input: Annotated[Strings, tyro.conf.arg(metavar="FILE …")]
    """Text: files, a folder of *.txt and *.jsonl, or TFDS sets (tfds:NAME)."""
    _: KW_ONLY
    documents: Literal["files", "blank_lines"] = "files"
    """What a document of a *.txt file is: the whole file, or text between blank lines."""
    length: int = 0
    """Tokens of a window; 0: as in training."""
    stride: int = 0
    """New tokens in each window, the others being context; 0: all."""
    batch: int = 8
    """Windows at a time."""
    step: int = 0
    """Another checkpoint than the newest."""

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError(f"batch={self.batch} is not a positive number of windows")
