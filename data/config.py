"""The configuration of data: sources, tokenizer, batches, tasks. Plain dataclasses: importing this costs nothing."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

LearnedKind = Literal["wordpiece", "byte-bpe", "characters", "sentencepiece-unigram", "sentencepiece-bpe", "words"]
"""The kinds of vocabulary that can be learned from text."""
Family = Literal["bert", "gpt", "elmo"]
"""A model family, as far as its data differ: which stream of text it is pretrained on, how a task's examples are laid
out."""
Stream = Literal["sentence_pairs", "windows", "lanes"]
"""How sequences are drawn from documents: BERT's pairs of sentence runs, GPT's windows over the joined text, ELMo's
lanes, each of which continues in the next batch where it stopped."""
STREAMS: dict[Family, Stream] = dict(zip(get_args(Family), get_args(Stream), strict=True))


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """From text to batches."""

    path: tuple[str, ...] = ()
    """Text: files (*.txt, *.jsonl), folders, TFDS sets (tfds:NAME); or one folder made by `contexture prepare`."""
    dev: tuple[str, ...] = ()
    """Held-out text, like path."""
    dev_fraction: float = 0.0
    """Instead of dev: hold out this share of each file of path, its end, in whole documents where it has several."""
    tokenizer: str = ""
    """A tokenizer folder or a published vocabulary; empty: learn the recipe's on the text of path."""
    lowercase: bool = True
    """WordPiece: lower-case and strip accents (the uncased models)."""
    split_sentences: bool = True
    """Lines may be paragraphs: split them into sentences. Off: every line is one sentence."""
    vocabulary: LearnedKind = "wordpiece"
    """The kind of vocabulary that is learned where data.tokenizer gives none."""
    word_splitter: Literal["spaces", "punctuation"] = "spaces"
    """ELMo: split text into words at spaces (tokenised text), or split punctuation off as well (raw text)."""
    documents: Literal["blank_lines", "files"] = "blank_lines"
    """For windows, the documents of a *.txt file: the text between blank lines, or the whole file."""
    packed: bool = False
    """GPT: documents in one window do not attend to each other."""
    batch: int = 32
    """Sequences per step, over the whole job."""
    ramp_from: int = 0
    """Sequences per step in the beginning, doubled at equal intervals until they are `batch`; 0: no ramp.

    Differs: GPT-3's batch grew linearly with the tokens seen (Brown et al. 2020, appendix B); doubled, it takes few
    compilations and stays divisible over devices. The recipes leave it out.
    """
    ramp_steps: int = 0
    """The step at which the ramp reaches `batch`."""
    length: int = 128
    """Tokens per sequence, special tokens included."""
    max_predictions: int = 0
    """BERT: masked tokens per sequence, at most (max_predictions_per_seq); 0: length times masked-fraction, rounded
    up."""
    masked_fraction: float = 0.15
    """BERT: share of a sequence's tokens that is masked and predicted (masked_lm_prob)."""
    short_fraction: float = 0.1
    """BERT: share of documents cut into shorter sequences (short_seq_prob)."""
    word_types: int = 0
    """ELMo: rows for the distinct words of a batch, three of them special; 0: as many as there could be."""
    negatives: int = 8192
    """ELMo: sampled negatives for each step and direction (sampled softmax); 0: the softmax over all words."""

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError(f"data.batch={self.batch} is not a positive number of sequences")
        if self.length < 1:
            raise ValueError(f"data.length={self.length} is not a positive number of tokens")
        if self.max_predictions < 0:
            raise ValueError(f"data.max-predictions={self.max_predictions} is not a number of tokens; give 0 or more")
        if self.word_types < 0 or 0 < self.word_types < 3:
            raise ValueError(f"data.word-types={self.word_types} has no room for the three marks; give more, or 0")
        if self.negatives < 0:
            raise ValueError(f"data.negatives={self.negatives} is not a number of words (0: the whole vocabulary)")
        for name in ("masked_fraction", "short_fraction", "dev_fraction"):
            value = getattr(self, name)
            if not 0.0 <= value < 1.0:
                raise ValueError(f"data.{name.replace('_', '-')}={value} is not in [0, 1)")
        if self.dev and self.dev_fraction:
            raise ValueError("data.dev and data.dev-fraction both hold out text; give one of them")
        # The ramp doubles up to exactly the batch, and has a step at least for each size.
        if self.ramp_from or self.ramp_steps:
            sizes = self._ramp()
            if self.ramp_from < 1 or self.ramp_steps < len(sizes) or sizes[-1:] != [self.batch // 2] or self.batch % 2:
                raise ValueError(
                    f"data.ramp-from={self.ramp_from} does not double to data.batch={self.batch} within "
                    f"data.ramp-steps={self.ramp_steps}; give half, a quarter, … of the batch, and a step for each size"
                )

    @property
    def slots(self) -> int:
        """Returns the masked slots of a sequence, P: `max_predictions`, or a fraction of the length, rounded up: 20 of
        128, 77 of 512."""
        # Rounded first: 100 · 0.07 is 7.000000000000001 in floats, and not eight slots.
        return self.max_predictions or max(math.ceil(round(self.length * self.masked_fraction, 6)), 1)

    def _ramp(self) -> list[int]:
        """Returns the sizes of a batch on the ramp: 16, 32, … to half of it."""
        sizes, size = [], self.ramp_from
        while 0 < size < self.batch:
            sizes.append(size)
            size *= 2
        return sizes

    def batch_size_at(self, step: int) -> int:
        """Returns the sequences of a step: `batch`, or fewer on the ramp."""
        if step >= self.ramp_steps:
            return self.batch
        sizes = self._ramp()
        return sizes[step * len(sizes) // self.ramp_steps]

    def examples_before(self, step: int) -> int:
        """Returns the sequences of all steps before this one: every one has a number, whatever the ramp."""
        # Behind the ramp every step has a whole batch; on it each stage counts its steps so far.
        whole, sizes = max(step - self.ramp_steps, 0) * self.batch, self._ramp()
        for number, size in enumerate(
            sizes
        ):  # as in batch_size_at: stage n begins at n · ramp_steps / stages, rounded up
            first, last = (-(-at * self.ramp_steps // len(sizes)) for at in (number, number + 1))
            whole += size * max(min(step, last) - first, 0)
        return whole


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """A labelled task and where its examples lie.

    Files are *.tsv, *.csv, *.jsonl, *.conll and *.conllu, or TFDS sets as tfds:NAME[/CONFIG][:VERSION][:SPLIT].
    A column is a name, or a position counted from 1.
    """

    name: str = "off"
    """A named task (`contexture recipes` lists them)."""
    kind: Literal["off", "classify", "regress", "tag", "choice", "span"] = "off"
    """The prediction: a class of a text or a pair, a number, a tag for each word, which alternative fits a text, or
    (imported models only) the span of an answer."""
    train: tuple[str, ...] = ()
    """Examples to learn from."""
    dev: tuple[str, ...] = ()
    """Held-out examples, looked at while training."""
    test: tuple[str, ...] = ()
    """Held-out examples for `contexture evaluate --split test`."""
    dev_fraction: float = 0.0
    """Instead of dev: hold out this share of the rows of train, drawn by their numbers."""
    text: str = ""
    """The column of the text, the pair's first text, or the words; empty: one with a usual name (text, sentence, …)."""
    second: str = ""
    """The column of the pair's second text; empty: one with a usual name beside the first, where there is one."""
    choices: tuple[str, ...] = ()
    """The columns of the alternatives, or the one that holds a list of them; empty: `choices`, or those with usual
    names (choice1 and choice2, ending0 and ending1, …)."""
    label: str = ""
    """The column of the label, the number or the tags; empty: one with a usual name (label, category, tags, …)."""
    header: Literal["auto", "yes", "no"] = "auto"
    """Whether tsv and csv begin with the names of their columns; auto: yes, unless columns are given by position."""
    labels: tuple[str, ...] = ()
    """All labels in their order, or names of the alternatives in theirs; empty: those of train, sorted, or numbers."""
    class_weights: tuple[str, ...] = ()
    """Weights of labels in the loss: `balanced`, or LABEL=WEIGHT for some; empty: all 1."""
    symmetric: bool = False
    """Read a pair in both orders, and add the two outputs (GPT-1's similarity)."""
    lm_weight: float = 0.0
    """Weight of the auxiliary language-modelling loss (GPT-1's lambda); 0 disables it."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.dev_fraction < 1.0:
            raise ValueError(f"task.dev-fraction={self.dev_fraction} is not in [0, 1)")
        if self.dev and self.dev_fraction:
            raise ValueError("task.dev and task.dev-fraction both hold out examples; give one of them")
        if len(set(self.labels)) != len(self.labels):
            raise ValueError("task.labels names a label twice; give each once")
        for name, kinds in (("second", ("tag", "choice")), ("symmetric", ("tag", "choice"))):
            if getattr(self, name) and self.kind in kinds:
                raise ValueError(f"task.{name} has no meaning for task.kind={self.kind}; leave it out")
        if self.choices and self.kind not in ("off", "choice"):
            raise ValueError(f"task.choices has no meaning for task.kind={self.kind}; leave it out")
        if len(set(self.choices)) != len(self.choices):
            raise ValueError("task.choices names a column twice; give each once")
        if self.kind == "choice" and len(self.labels) == 1:
            raise ValueError("task.labels names a single alternative; give a name for each, or none")
        if not 0.0 <= self.lm_weight < math.inf:
            raise ValueError(f"task.lm-weight={self.lm_weight} is not a number from 0 on")
        if self.kind == "regress" and (self.labels or self.class_weights):
            raise ValueError("task.labels and task.class-weights have no meaning for task.kind=regress; leave them out")
