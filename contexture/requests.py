"""One request type for each command that trains nothing: its options, with their help. Needs no jax.

In a request, `step=0` is the newest good checkpoint.
"""

from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import tyro

from contexture.data.config import LearnedKind
from contexture.models.config import Sampling
from contexture.train.config import Run
from contexture.train.evaluation.request import EvaluationOptions, Strings

Place: TypeAlias = str | Path
"""A file or a folder."""
_RUN, _FILE, _DIR = (tyro.conf.arg(metavar=metavar) for metavar in ("RUN", "FILE", "DIR"))
_FILES, _TEXTS, _TEXT = (tyro.conf.arg(metavar=metavar) for metavar in ("FILE …", "TEXT …", "TEXT"))


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
class CompletionRequest:
    """A script that completes words in a shell."""

    shell: tyro.conf.Positional[Literal["bash", "zsh", "fish"]]
    """The shell that reads the script: bash from ~/.bashrc, zsh from ~/.zshrc after compinit, fish from config.fish."""


@dataclass(frozen=True, kw_only=True)
class RunRequest(Run):
    """The options of a run, and further ones of a command."""

    @property
    def run(self) -> Run:
        """The run alone."""
        return Run(**{field.name: getattr(self, field.name) for field in fields(Run)})


@dataclass(frozen=True, kw_only=True)
class PlanRequest(RunRequest):
    """What training a recipe takes of devices that need not be here: memory, time, what bounds it."""

    topology: Annotated[str, tyro.conf.arg(metavar="DEVICES")] = ""
    """The devices: v5e:4x4, v5p:4x4x4, v6e:8x8, h100:1x8 (hosts × GPUs), h200:4x8, a100:1x8 or cpu:8."""
    suggest: bool = False
    """Try meshes, microbatches, remat and attention, and rank what fits."""


@dataclass(frozen=True, kw_only=True)
class FinetuneRequest(RunRequest):
    """A fine-tuning; with --grid or --seeds several, which are compared."""

    grid: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FIELD=VALUE,VALUE …")] = ()
    """Train every combination of these values, a run each within --dir, and choose the best by its held-out figures.
    Runs that differ in learning rate and seed alone share the compiled step."""
    seeds: int = 1
    """How many seeds each setting is trained with, from --seed on. The table has their mean and deviation."""


@dataclass(frozen=True, kw_only=True)
class TokenizerRequest:
    """Learn a vocabulary from text."""

    kind: tyro.conf.Positional[LearnedKind]
    """The kind of vocabulary: a BERT needs wordpiece, an ELMo words; a GPT takes byte-bpe, characters or a
    sentencepiece."""
    input: Annotated[tuple[str, ...], _FILES]
    """The text to learn from: files, a folder of *.txt and *.jsonl, or TFDS sets (tfds:NAME)."""
    vocab_size: int = 30522
    """The most tokens that the vocabulary may have."""
    to: Annotated[str, _DIR]
    """The folder to write the tokenizer to."""
    lowercase: bool = True
    """Lower-case the text and strip accents, for wordpiece; all other kinds keep text as it is."""
    word_splitter: Literal["spaces", "punctuation"] = "spaces"
    """How kind words splits text: at spaces (tokenised text), or punctuation off as well (raw text)."""

    def __post_init__(self) -> None:
        _check_place(self.to)


@dataclass(frozen=True, kw_only=True)
class PrepareRequest:
    """Tokenise text once into shards, which any number of runs may then read: --data.path FOLDER."""

    recipe: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="RECIPE")]]
    """The recipe that the runs will have: it decides how text is cut and tokenised."""
    input: Annotated[tuple[str, ...], _FILES]
    """The text to tokenise: files, a folder of *.txt and *.jsonl, or TFDS sets (tfds:NAME)."""
    to: Annotated[str, _DIR]
    """The folder to write the shards to."""
    tokenizer: Annotated[str, _DIR] = ""
    """A tokenizer's folder, or a published vocabulary. Without it, the recipe's vocabulary is learned on the text."""
    dev: Annotated[tuple[str, ...], _FILES] = ()
    """Held-out text, like --input."""
    dev_fraction: float = 0.0
    """The share of each file, at its end, that is held out. It takes the place of --dev."""
    config: Annotated[str, _FILE] = ""
    """A file of settings that the runs will have too, as `contexture pretrain --config` reads it."""

    def __post_init__(self) -> None:
        _check_place(self.to)


@dataclass(frozen=True, kw_only=True)
class EvaluationArgs(EvaluationOptions):
    """Held-out metrics of runs, over the whole set, each example once."""

    runs: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUN …")]]
    """The folder of a run, or of several, which are evaluated one after the other."""
    dev: Annotated[Strings, tyro.conf.arg(aliases=["--task.dev"], metavar="FILE …")] = ()
    step: Annotated[tuple[str, ...], tyro.conf.arg(metavar="N …|best|all")] = ()
    to: Annotated[str, _DIR] = ""
    submission: Annotated[str, _DIR] = ""
    figures: Annotated[str, _DIR] = ""


@dataclass(frozen=True, kw_only=True)
class PredictionRequest:
    """Predictions for new examples: of a file, a JSON line each, or for one that is given here."""

    run: tyro.conf.Positional[Annotated[str, _RUN]]
    """The folder of a fine-tuned run."""
    input: Annotated[str, _FILE] = ""
    """A file of examples, labelled or not, of any size. Without it, --text is the example itself."""
    to: Annotated[str | None, _FILE] = None
    """The file to write the predictions to, a JSON object per line."""
    text: Annotated[str, _TEXT] = ""
    """One text, or its words, or the question. With --input: the column of it, where it has another name than in the
    training set."""
    second: Annotated[str, _TEXT] = ""
    """The second text of a pair, or the context of a question. With --input: the column of it."""
    choices: Annotated[tuple[str, ...], _TEXTS] = ()
    """The alternatives. With --input: the columns of them."""
    header: Literal["", "auto", "yes", "no"] = ""
    """Whether tsv and csv begin with the names of their columns. Without it, as in training."""
    step: int = 0
    """The step of the checkpoint to use; 0 is the newest good one."""
    batch: int = 64
    """Examples at a time."""

    def __post_init__(self) -> None:
        if self.to is not None:
            _check_place(self.to)
        if self.input and not self.to:
            raise ValueError("predict needs --to FILE: contexture predict RUN --input FILE --to FILE")
        if self.to and not self.input:
            raise ValueError("to= is for the predictions of a file; give it as --input FILE, or leave --to out")
        if not self.input and not self.text.strip():
            raise ValueError("give --input FILE and --to FILE, or one example: --text TEXT")
        if not self.input and self.header:
            raise ValueError("header= is for a file; give it as --input FILE, or leave --header out")
        if self.batch < 1:
            raise ValueError(f"batch={self.batch} is not a positive number of examples")


@dataclass(frozen=True)
class FillRequest:
    """The most probable tokens for each [MASK] of a text, from a masked language model."""

    run: tyro.conf.Positional[Annotated[Place, _RUN]]
    """The folder of a pretrained BERT."""
    text: str
    """A text with one [MASK] or several."""
    _: KW_ONLY
    top: int = 5
    """How many tokens to list for each [MASK]."""
    step: int = 0
    """The step of the checkpoint to use; 0 is the newest good one."""


@dataclass(frozen=True)
class GenerationRequest:
    """Continuations of prompts, from a GPT."""

    run: tyro.conf.Positional[Annotated[Place, _RUN]]
    """The folder of a pretrained GPT."""
    prompt: Annotated[Strings, _TEXTS] = ()
    """A prompt or several; an empty one starts a document."""
    _: KW_ONLY
    input: Annotated[str, _FILE] = ""
    """A file with a prompt in each line, in place of --prompt."""
    tokens: int = 0
    """The most tokens to generate; 0 is 64, or as many as the model takes."""
    temperature: float = 1.0
    """How freely tokens are sampled: 0 takes always the most probable one, 1 the model's own probabilities."""
    top_k: int = 0
    """Sample from the k most probable tokens; 0 is from all."""
    top_p: float = 1.0
    """Sample from the most probable tokens that together reach this probability (nucleus sampling); 1 is from all."""
    top_p_exclusive: bool = False
    """Leave out the token with which --top-p is reached, as GPT-2's code does."""
    stop: Annotated[Strings, _TEXTS] = ()
    """Texts before which the generation ends."""
    seed: int = 0
    """The seed of the random numbers; the same seed gives the same text."""
    batch: int = 16
    """Prompts at a time."""
    step: int = 0
    """The step of the checkpoint to use; 0 is the newest good one."""

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

    run: tyro.conf.Positional[Annotated[Place, _RUN]]
    """The folder of a run of any family."""
    input: Annotated[Place, _FILE]
    """A text file; each line is a sentence."""
    to: Annotated[Place, _FILE]
    """The file to write the vectors to. *.npy, *.parquet or *.safetensors: a matrix, a row for each line's sentence.
    *.hdf5 or *.npz: an array for each line's words or tokens; hdf5 in the original ELMo's layout."""
    _: KW_ONLY
    layers: str = "auto"
    """Layers to take: auto, last, all, or numbers such as `0,2`, where 0 is the words' own. auto: last for sentences,
    all for words."""
    pool: Literal["auto", "none", "mean", "mean-words", "last", "cls"] = "auto"
    """How a sentence's vector comes from those of its tokens. none: it does not. mean: of all tokens. mean-words:
    without a BERT's [CLS] and [SEP]. last: the last of these. cls: a BERT's [CLS]. auto: mean-words in a matrix, none
    otherwise."""
    batch: int = 64
    """Lines at a time."""
    stateful: bool = False
    """Continue, in line n, the hidden state of line n - batch: for an ELMo, as the original's inference does."""
    step: int = 0
    """The step of the checkpoint to use; 0 is the newest good one."""

    def __post_init__(self) -> None:
        _check_place(self.to)


@dataclass(frozen=True, kw_only=True)
class LayersRequest:
    """The weight of each layer in the mixes that fine-tuned runs have learned."""

    runs: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUN …")]]
    """The folders of fine-tuned runs: seeds of a task, or several tasks."""
    to: Annotated[str, _FILE] = ""
    """A figure to draw, *.png or *.svg: a bar for each layer and task, the deviation over seeds upon it."""
    theme: Literal["light", "dark"] = "light"
    """The colours of a *.png. An *.svg follows its reader."""


@dataclass(frozen=True, kw_only=True)
class StatusRequest:
    """Where runs are: step, loss, speed, whether one trains now, its newest checkpoint."""

    runs: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUN …")]]
    """The folders of runs."""


@dataclass(frozen=True, kw_only=True)
class CompareRequest:
    """Losses of several runs, and the settings in which they differ."""

    runs: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="RUN …")]]
    """The folders of two runs or more."""
    to: Annotated[str, _FILE] = ""
    """A page or a picture of their curves to write, *.html, *.png or *.svg. Without it, tables are printed alone."""
    theme: Literal["light", "dark"] = "light"
    """The colours of a *.png. A page and an *.svg follow their reader."""

    def __post_init__(self) -> None:
        if len(self.runs) < 2:
            raise ValueError("compare needs two runs or more: contexture compare RUN RUN …")


@dataclass(frozen=True, kw_only=True)
class ImportRequest:
    """A published model as a run."""

    format: tyro.conf.Positional[Literal["hf", "bert-tf", "gpt2-tf", "gpt1-npy", "bilm"]]
    """The format of the files. hf: a BERT, ERNIE 1.0, GPT-1 or GPT-2 as transformers saves it. bert-tf: Google's
    checkpoint, bert_config.json, vocab.txt. gpt2-tf: OpenAI's checkpoint, hparams.json, encoder.json, vocab.bpe.
    gpt1-npy: OpenAI's ten shards, params_shapes.json, encoder_bpe_40000.json, vocab_40000.bpe. bilm: ELMo as bilm-tf
    has it, options.json and weights in hdf5."""
    path: tyro.conf.Positional[Annotated[str, _DIR]]
    """The folder of its files."""
    to: Annotated[str, _RUN]
    """The folder of the run to write."""
    vocabulary: Annotated[str, _FILE] = ""
    """Another vocabulary than the one beside the model. For bilm: the words of a softmax to train; without it,
    those that lie beside the model, or none."""
    lowercase: Literal["auto", "yes", "no"] = "auto"
    """Whether a BERT lower-cases text; auto is what the files say, else no where the vocabulary has capitals."""
    gelu: Literal["erf", "tanh"] = "erf"
    """Which gelu a model of bert-tf was trained with; its files do not say."""
    word_splitter: Literal["spaces", "punctuation"] = "spaces"
    """How an ELMo of bilm splits text into words: at spaces, as the original does with its tokenised text, or
    punctuation off as well."""

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

    run: tyro.conf.Positional[Annotated[str, _RUN]]
    """The folder of the run."""
    format: tyro.conf.Positional[Literal["hf", "peft", "bilm", "stablehlo"]]
    """What to write. hf: what transformers loads. peft: a LoRA run's adapters and heads, which peft loads onto the base
    model in hf. bilm: ELMo as bilm-tf has it, options.json and weights in hdf5. stablehlo: a program that jax runs
    without this library, with its weights."""
    to: Annotated[str, _DIR]
    """The folder to write the files to."""
    step: int = 0
    """The step of the checkpoint to use; 0 is the newest good one."""

    def __post_init__(self) -> None:
        _check_place(self.to)


@dataclass(frozen=True)
class ScoreRequest:
    """How well a run predicts text: perplexity, a BERT's pseudo-perplexity, both directions of an ELMo."""

    run: tyro.conf.Positional[Annotated[Place, _RUN]]
    """The folder of a pretrained run."""
    input: Annotated[Strings, _FILES]
    """The text to score: files, a folder of *.txt and *.jsonl, or TFDS sets (tfds:NAME)."""
    _: KW_ONLY
    documents: Literal["files", "blank_lines"] = "files"
    """What a document of a *.txt file is: the whole file, or the text between blank lines."""
    length: int = 0
    """Tokens of a window, a BERT's [CLS] and [SEP] too; 0 is as in training."""
    stride: int = 0
    """New tokens in each window, the others being context; 0 is all."""
    batch: int = 8
    """Windows, or an ELMo's sentences, at a time."""
    step: int = 0
    """The step of the checkpoint to use; 0 is the newest good one."""

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError(f"batch={self.batch} is not a positive number of windows")
