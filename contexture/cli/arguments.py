"""What the commands are asked that train nothing, as typed configurations. Needs no jax."""

from dataclasses import dataclass, field
from typing import Literal

import tyro

from contexture.models.config import Sampling
from contexture.train.options import MeshConfig


@dataclass(frozen=True, kw_only=True)
class _To:
    """What is written somewhere."""

    to: str

    def __post_init__(self) -> None:
        if not self.to.strip():  # a shell's variable that is not set: it would be the folder one stands in
            raise ValueError("to= is empty; give --to a path")


@dataclass(frozen=True)
class NoArgs:
    """A command without options."""


@dataclass(frozen=True, kw_only=True)
class Show:
    """The resolved configuration and the parameter table; nothing runs."""

    what: tyro.conf.Positional[str]
    """A recipe or the folder of a run."""


@dataclass(frozen=True, kw_only=True)
class LearnTokenizer(_To):
    """Learn a vocabulary from text."""

    kind: tyro.conf.Positional[
        Literal["wordpiece", "byte-bpe", "characters", "sentencepiece-unigram", "sentencepiece-bpe", "words"]
    ]
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
    split: Literal["spaces", "punctuation"] = "spaces"
    """Of words: they stand between spaces already, or punctuation is to be parted from them first (raw text)."""


@dataclass(frozen=True, kw_only=True)
class Prepare(_To):
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


@dataclass(frozen=True, kw_only=True)
class Files:
    """Other examples than the run's own."""

    dev: tuple[str, ...] = ()
    """Labelled files to look at, with the columns of the training set."""


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Held-out figures of a run, over the whole set, each example once."""

    run: tyro.conf.Positional[str]
    """The run's folder."""
    split: Literal["dev", "test", "train"] = "dev"
    """Of a task: which of the run's own examples."""
    task: Files = field(default_factory=Files)
    step: tuple[str, ...] = ()
    """Checkpoints: their steps, `best`, or `all`; empty: the newest good one."""
    batch: int = 0
    """Lines at a time; 0: as in training."""
    to: str = ""
    """A folder for predictions.jsonl; empty: RUN/evaluations."""
    mesh: MeshConfig = field(default_factory=MeshConfig)

    def __post_init__(self) -> None:
        if self.batch < 0:
            raise ValueError(f"batch={self.batch} is not a number of lines (0: as in training)")


@dataclass(frozen=True, kw_only=True)
class Predict(_To):
    """Answers to new examples, a JSON line each."""

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
    """Lines at a time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch < 1:
            raise ValueError(f"batch={self.batch} is not a positive number of lines")


@dataclass(frozen=True, kw_only=True)
class Fill:
    """What a masked language model would put in the place of each [MASK]."""

    run: tyro.conf.Positional[str]
    """The folder of a pretrained run."""
    text: str
    """A text with one [MASK] or several."""
    top: int = 5
    """Pieces for each."""
    step: int = 0
    """Another checkpoint than the newest."""


@dataclass(frozen=True, kw_only=True)
class Generate:
    """What a GPT writes on from a prompt."""

    run: tyro.conf.Positional[str]
    """The folder of a pretrained run."""
    prompt: tuple[str, ...] = ()
    """A prompt or several; an empty one begins a document."""
    input: str = ""
    """Instead of prompt: a file with a prompt in each line."""
    tokens: int = 0
    """Most tokens that are written; 0: 64, or as many as the model takes."""
    temperature: float = 1.0
    """0: always the likeliest token; 1: as the model has it."""
    top_k: int = 0
    """Draw among the k likeliest tokens; 0: all."""
    top_p: float = 1.0
    """Draw among the likeliest tokens that together have this share; 1: all."""
    exclusive: bool = False
    """The token with which top-p is reached stays out, as in GPT-2's code."""
    stop: tuple[str, ...] = ()
    """Texts before which the writing ends."""
    seed: int = 0
    batch: int = 16
    """Prompts at a time."""
    step: int = 0
    """Another checkpoint than the newest."""

    def __post_init__(self) -> None:
        if bool(self.prompt) == bool(self.input):
            raise ValueError("give --prompt TEXT, or --input FILE with a prompt in each line")
        Sampling(self.temperature, self.top_k, self.top_p)


@dataclass(frozen=True, kw_only=True)
class Embed(_To):
    """The vectors of a text's words, of a BERT's or a GPT's pieces, line by line."""

    run: tyro.conf.Positional[str]
    """The run's folder."""
    input: str
    """A text file; each line is a sentence."""
    to: str
    """The file of vectors: *.hdf5, a dataset for each line by its number, as the original's; or *.npz, alike."""
    layers: str = "all"
    """all: [layers, words, width], the words' own first; last; or numbers, `0,2`."""
    pool: Literal["none", "mean", "mean-words", "last", "cls"] = "none"
    """none: a vector for every token, a BERT's [CLS] and [SEP] among them. Else one for a line: mean of all these
    tokens; mean-words, of those without [CLS] and [SEP]; last of those; cls, a BERT's [CLS]."""
    batch: int = 64
    """Lines at a time."""
    stateful: bool = False
    """Of an ELMo: line n goes on from line n - batch, as in the original's inference."""
    step: int = 0
    """Another checkpoint than the newest."""


@dataclass(frozen=True, kw_only=True)
class Layers:
    """What each layer counts in the mixes that fine-tuned runs have learned."""

    runs: tyro.conf.Positional[tuple[str, ...]]
    """Runs' folders: seeds of a task, or several tasks."""
    to: str = ""
    """A figure, *.png or *.svg: a bar for each layer and task, the spread over seeds upon it."""


@dataclass(frozen=True, kw_only=True)
class Import(_To):
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
    split: Literal["spaces", "punctuation"] = "spaces"
    """Of bilm: how the run parts the words of text: at spaces, as the original, whose text is tokenised; or punctuation
    from words too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, usual, formats in (
            ("lowercase", "auto", ("hf", "bert-tf")), ("gelu", "erf", ("bert-tf",)), ("split", "spaces", ("bilm",))
        ):  # fmt: skip
            if getattr(self, name) != usual and self.format not in formats:
                raise ValueError(f"--{name} has no meaning for {self.format}; it is for {' and '.join(formats)}")


@dataclass(frozen=True, kw_only=True)
class Export(_To):
    """A run as files that others read."""

    run: tyro.conf.Positional[str]
    """The run's folder."""
    format: tyro.conf.Positional[Literal["hf", "bilm"]]
    """hf: what transformers loads. bilm: ELMo as bilm-tf has it, options.json and weights in hdf5."""
    to: str
    """The folder of the files."""
    step: int = 0
    """Another checkpoint than the newest."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """How well a GPT predicts text: perplexity per token and per word, bits per byte."""

    run: tyro.conf.Positional[str]
    """The folder of a pretrained run."""
    input: tuple[str, ...]
    """Text: files, a folder of *.txt and *.jsonl, or TFDS sets (tfds:NAME)."""
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
