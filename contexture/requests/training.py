"""The options of the commands that train, plan, learn a vocabulary or prepare text. Needs no jax."""

import math
import re
from dataclasses import dataclass, fields
from typing import Annotated, Literal

from contexture.data.config import LearnedKind, UnitKind
from contexture.data.mixed_paths import mixture_of
from contexture.requests.arguments import DIR, FILE, FILES, POSITIONAL, Arg, check_effect, check_place
from contexture.train.settings.run import Run

MOST_PARTS = 100_000


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
    input: Annotated[tuple[str, ...], FILES] = ()
    """The text to learn from: files, a folder of *.txt and *.jsonl, or TFDS sets (tfds:NAME). NAME=WEIGHT:PATH for each
    of several counts them by weights, as the mixture of a run."""
    languages: Annotated[str, DIR] = ""
    """A folder with a folder or a file for each language, which count by P(L)^S, P(L) being a language's share of the
    text."""
    language_exponent: float = 0.7
    """S of languages."""
    text_column: str = "text"
    """The column of the text in tables (*.jsonl, *.json, *.parquet, TFDS sets, …)."""
    sample_gb: float = 0.0
    """Learn from so many gigabytes of the text (of each language or source with a weight), pieces of 4 MiB at equal
    distances; 0: from all of it."""
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
    workers: int = 1
    """How many processes count words. The vocabulary is the same for any number."""
    part: Annotated[str, Arg(metavar="I/N")] = ""
    """Count only the words of part I of N, from 0, into TO.parts, unless they are there. Parts may be made in any
    order, on any machines that share the folder; --join learns from them."""
    join: bool = False
    """Learn from the parts in TO.parts, as from the text itself. Needs no --input."""

    def __post_init__(self) -> None:
        check_place(self.to)
        if not self.input and not self.languages and not self.join:
            raise ValueError("input names no text; give a file, several, or a folder")
        if self.languages and self.input:
            raise ValueError("languages and input both name the text; give one of them")
        if self.languages or mixture_of(self.input):
            what = "text without weights, since others are counted in one process; give paths alone as --input"
            check_effect(self, ("workers", "part", "join"), False, what)
        # `not a <= x` refuses NaN as well.
        if not 0.0 <= self.language_exponent < math.inf:
            raise ValueError(f"language-exponent={self.language_exponent} is not a number from 0 on")
        check_effect(self, ("language_exponent",), bool(self.languages), "languages; give --languages FOLDER")
        if self.workers < 1:
            raise ValueError(f"workers={self.workers} is not a positive number of processes")
        if self.join:
            given = ("input", "text_column", "sample_gb", "lowercase", "word_splitter", "part", "workers")
            check_effect(self, given, False, "counting words; leave --join out")
        if self.part:
            _ = self.part_of_count
            given = ("workers", "vocab_size", "overwrite")
            check_effect(self, given, False, "a whole vocabulary, not one part; leave --part out")
        if not 0.0 <= self.sample_gb < math.inf:
            raise ValueError(f"sample-gb={self.sample_gb} is not a number of gigabytes from 0 on")
        check_effect(self, ("word_splitter",), self.kind == "words", "words; give the kind words")

    @property
    def part_of_count(self) -> tuple[int, int]:
        """Returns the part's number and how many there are."""
        return part_of_count(self.part)


@dataclass(frozen=True, kw_only=True)
class PrepareRequest:
    """Tokenise text once into shards, which any number of runs may then read: --data.path FOLDER. Or write the training
    instances of BERT's original script: --as google-tfrecord."""

    recipe: Annotated[str, Arg(metavar="RECIPE"), POSITIONAL]
    """The recipe that the runs will have: it decides how text is cut and tokenised."""
    input: Annotated[tuple[str, ...], FILES] = ()
    """The text to tokenise: files, a folder of *.txt and *.jsonl, or TFDS sets (tfds:NAME)."""
    text_column: str = ""
    """The column of the text in tables (*.jsonl, *.json, *.parquet, TFDS sets, …). Without it, data.text-column of
    --config, or text."""
    to: Annotated[str, DIR]
    """The folder to write to."""
    format: Annotated[Literal["shards", "google-tfrecord"], Arg(aliases=("--as",))] = "shards"
    """What is written. google-tfrecord: the instances of create_pretraining_data.py for the same text (a sentence in
    each line), vocabulary and seed, with the recipe's data.length, max-predictions, masked-fraction and short-fraction,
    or those of --config. Text and instances are in memory, as there."""
    seed: int = 12345
    """Seed of the instances (random_seed)."""
    dupe_factor: int = 10
    """How many times the instances go over the text, each time with other pairs and masks."""
    whole_word_mask: bool = False
    """Mask all pieces of a word or none (do_whole_word_mask)."""
    files: int = 1
    """How many TFRecord files the instances are dealt to, in turn."""
    part: Annotated[str, Arg(metavar="I/N")] = ""
    """Tokenise only part I of N, from 0, into TO.parts, unless it is there. Parts may be made in any order, on any
    machines that share the folder; --join makes shards of them. They need one --tokenizer."""
    join: bool = False
    """Join the parts in TO.parts into shards, the same as without parts. Needs neither --input nor --tokenizer."""
    runner: Literal["local", "ray"] = "local"
    """Where parts are made: on this machine, or as tasks of the Ray cluster that RAY_ADDRESS names, or that runs here.
    All its nodes must see --input and --to, on a shared disk or in a bucket."""
    workers: int = 0
    """How many processes tokenise, one by default; in a Ray cluster the most parts at once, by default as many as it
    has processors. What they have done stays where the work is stopped; the same command resumes."""
    per_worker: bool = False
    """Show what each worker is at."""
    tokenizer: Annotated[str, DIR] = ""
    """A tokenizer's folder, or a published vocabulary. Without it, the recipe's vocabulary is learned on the text."""
    sequences: Literal["pairs", "dialogues"] = "pairs"
    """What a BERT's sequences will be, as data.sequences; dialogues are rows with turns."""
    units: UnitKind = "off"
    """How words are found that a BERT masks together, as data.units: spans, as the rows say, or jieba."""
    gazetteer: Annotated[str, FILE] = ""
    """A file with the name of an entity in each line, as data.gazetteer."""
    dev: Annotated[tuple[str, ...], FILES] = ()
    """Held-out text, like --input."""
    dev_fraction: float = 0.0
    """The share of each file, at its end, that is held out. It takes the place of --dev."""
    config: Annotated[str, FILE] = ""
    """A file of settings that the runs will have too, as `contexture pretrain --config` reads it."""

    def __post_init__(self) -> None:
        check_place(self.to)
        if not self.input and not self.join:
            raise ValueError("input names no text; give a file, several, or a folder")
        if self.workers < 0:
            raise ValueError(f"workers={self.workers} is not a positive number of processes")
        several = self.workers > 1 and self.runner == "local"
        check_effect(self, ("per_worker",), several, "several workers of this machine; give --workers 4")
        self._check_format()
        if self.join:
            given = ("input", "text_column", "tokenizer", "dev", "dev_fraction", "part", "workers", "runner")
            given += ("units", "gazetteer", "sequences")
            check_effect(self, given, False, "making parts; leave --join out")
        if self.part:
            _ = self.part_of_count
            check_effect(self, ("workers", "runner"), False, "a whole preparation, not one part; leave --part out")
            if not self.tokenizer:
                raise ValueError(
                    "part= wants one vocabulary for all parts; learn it first (contexture tokenizer …), and give it as "
                    "--tokenizer DIR"
                )

    def _check_format(self) -> None:
        for name in ("dupe_factor", "files"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name.replace('_', '-')}={getattr(self, name)} is not a positive number")
        records = self.format == "google-tfrecord"
        own = ("seed", "dupe_factor", "whole_word_mask", "files")
        check_effect(self, own, records, "TFRecords; give --as google-tfrecord")
        # The original has no such things: held-out text is given to another call.
        others = ("part", "join", "runner", "workers", "per_worker", "dev", "dev_fraction")
        check_effect(self, others, not records, "shards; give --as shards")

    @property
    def part_of_count(self) -> tuple[int, int]:
        """Returns the part's number and how many there are."""
        return part_of_count(self.part)


def part_of_count(word: str) -> tuple[int, int]:
    """Returns the number of a part and how many there are: "0/8" → (0, 8). Raises: ValueError for no such part."""
    match = re.fullmatch(r"([0-9]+)/([0-9]+)", word)
    part, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not part < count <= MOST_PARTS:
        raise ValueError(f"part={word} is not a part like 0/8 to 7/8")
    return part, count
