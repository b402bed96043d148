"""The options of the commands that train, plan, learn a vocabulary or prepare text. Needs no jax."""

from dataclasses import dataclass, fields
from typing import Annotated, Literal

from contexture.data.config import LearnedKind
from contexture.requests.arguments import DIR, FILE, FILES, POSITIONAL, Arg, check_effect, check_place
from contexture.train.settings.run import Run


@dataclass(frozen=True)
class NoOptions:
    """A command without options."""


@dataclass(frozen=True, kw_only=True)
class CheckRequest:
    """What a host lacks before a run begins. Run it on each host of a job, as the run itself is started."""

    dir: Annotated[str, DIR] = ""
    """The folder that the run will be written to, as every host sees it: a file is written there, and deleted."""


@dataclass(frozen=True, kw_only=True)
class CompletionRequest:
    """A script that completes words in a shell."""

    shell: Annotated[Literal["bash", "zsh", "fish"], POSITIONAL]
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
    """What training takes of devices that need not be here: memory, time, what bounds it. With --task.kind or
    --task.name it is the fine-tuning of a recipe's model, or of a run."""

    topology: Annotated[str, Arg(metavar="DEVICES")] = ""
    """The devices: v5e:4x4, v5litepod-16, v5p:4x4x4, v4-32, 2*v6e:8x8 (two slices), h100:1x8 (hosts × GPUs), h200:4x8,
    a100-40g:8, rtx4090:1, l4, t4 or cpu:8."""
    slice_gbps: float = 25.0
    """How many gigabits a second a chip of one slice sends to other slices: the network of its host by its chips."""
    suggest: bool = False
    """Try meshes, microbatches, remat and attention, and rank what fits."""


@dataclass(frozen=True, kw_only=True)
class FinetuneRequest(RunRequest):
    """A fine-tuning; with --grid or --seeds several, which are compared."""

    grid: Annotated[tuple[str, ...], Arg(metavar="FIELD=VALUE,VALUE …")] = ()
    """Train every combination of these values, a run each within --dir, and choose the best by its held-out figures.
    Runs that differ in learning rate and seed alone share the compiled step."""
    seeds: int = 1
    """How many seeds each setting is trained with, from --seed on. The table has their mean and deviation."""
    table: Annotated[str, FILE] = ""
    """A file to write the table of --grid or --seeds to, a row for each setting: *.tex (LaTeX), *.csv or *.md."""


@dataclass(frozen=True, kw_only=True)
class TokenizerRequest:
    """Learn a vocabulary from text."""

    kind: Annotated[LearnedKind, POSITIONAL]
    """The kind of vocabulary: a BERT needs wordpiece, an ELMo words; a GPT takes byte-bpe, characters or a
    sentencepiece."""
    input: Annotated[tuple[str, ...], FILES]
    """The text to learn from: files, a folder of *.txt and *.jsonl, or TFDS sets (tfds:NAME)."""
    vocab_size: int = 30522
    """The most tokens that the vocabulary may have."""
    to: Annotated[str, DIR]
    """The folder to write the tokenizer to."""
    overwrite: bool = False
    """Replace an earlier tokenizer of the same kind in the folder, once the new one is complete. Runs keep a copy of
    theirs. A folder with other files is refused."""
    lowercase: bool = True
    """Lower-case the text and strip accents, for wordpiece; all other kinds keep text as it is."""
    word_splitter: Literal["spaces", "punctuation"] = "spaces"
    """How kind words splits text: at spaces (tokenised text), or punctuation off as well (raw text)."""

    def __post_init__(self) -> None:
        check_place(self.to)
        check_effect(self, ("word_splitter",), self.kind == "words", "words; give the kind words")


@dataclass(frozen=True, kw_only=True)
class PrepareRequest:
    """Tokenise text once into shards, which any number of runs may then read: --data.path FOLDER."""

    recipe: Annotated[str, Arg(metavar="RECIPE"), POSITIONAL]
    """The recipe that the runs will have: it decides how text is cut and tokenised."""
    input: Annotated[tuple[str, ...], FILES]
    """The text to tokenise: files, a folder of *.txt and *.jsonl, or TFDS sets (tfds:NAME)."""
    to: Annotated[str, DIR]
    """The folder to write the shards to."""
    tokenizer: Annotated[str, DIR] = ""
    """A tokenizer's folder, or a published vocabulary. Without it, the recipe's vocabulary is learned on the text."""
    dev: Annotated[tuple[str, ...], FILES] = ()
    """Held-out text, like --input."""
    dev_fraction: float = 0.0
    """The share of each file, at its end, that is held out. It takes the place of --dev."""
    config: Annotated[str, FILE] = ""
    """A file of settings that the runs will have too, as `contexture pretrain --config` reads it."""

    def __post_init__(self) -> None:
        check_place(self.to)
