"""The configuration of data: sources, tokenizer, batches, tasks. Plain dataclasses: importing this costs nothing."""

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from contexture.data.mixed_paths import mixture_of
from contexture.data.phases import Phase, phase_number, phases_of, stages_of
from contexture.data.task_kinds import KINDS, Kind

LearnedKind = Literal["wordpiece", "byte-bpe", "characters", "sentencepiece-unigram", "sentencepiece-bpe", "words"]
"""The kinds of vocabulary that can be learned from text."""
Context = Literal["sentence", "document"]
"""What a tagged sentence is read with: nothing, or the sentences around it (`DataConfig.context`)."""
BadRows = Literal["few", "fail", "skip"]
"""What becomes of labelled rows that cannot be read (`TaskConfig.bad_rows`)."""
Family = Literal["bert", "gpt", "elmo", "vectors"]
"""The name of a model family; `data.families` has what its data differ in. vectors: static word vectors, which are
imported and never pretrained."""
Stream = Literal["sentence_pairs", "windows", "lanes"]
"""How sequences are drawn from documents: BERT's pairs of sentence runs, GPT's windows over the joined text, ELMo's
lanes, each of which continues in the next batch where it stopped."""


UnitKind = Literal["off", "spans", "jieba"]
"""How the words that an ERNIE masks as units are found (`DataConfig.units`)."""
MaskingKind = Literal["pieces", "whole_words", "spans", "ernie"]
"""Which tokens a BERT masks together (`DataConfig.masking`)."""


class StepSize(NamedTuple):
    """The size of a step's batch.

    Args:
        sequences: its sequences; an example may have several.
        tokens: the tokens of their texts, special ones counted.
        computed: the places of its arrays, padding counted.
    """

    sequences: int
    tokens: int
    computed: int


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """From text to batches."""

    path: tuple[str, ...] = ()
    """Text to train on: files (*.txt, *.jsonl, hf://…), folders, TFDS sets (tfds:NAME), or one folder made by
    `contexture prepare`. NAME=WEIGHT:PATH for each of several mixes them by weights. Or for a BERT the TFRecords of
    create_pretraining_data.py, or a folder of *.tfrecord."""
    languages: str = ""
    """A folder with a folder or a file for each language, which are mixed by P(L)^S, P(L) being a language's share of
    the text. It takes the place of data.path."""
    language_exponent: float = 0.7
    """S of data.languages: below 1 small languages come more often than their share, with 0 all alike."""
    text_column: str = "text"
    """The column of the text in *.jsonl, *.json and columnar files, and in TFDS sets."""
    dev: tuple[str, ...] = ()
    """Held-out text, like data.path."""
    dev_fraction: float = 0.0
    """The share of each file, at its end, that is held out; in whole documents where it has several. It takes the place
    of data.dev."""
    tokenizer: str = ""
    """A tokenizer's folder, or a published vocabulary. Without it, the recipe's vocabulary is learned on the text."""
    lowercase: bool = True
    """Lower-case text and strip accents, as the uncased models."""
    split_sentences: bool = True
    """Split lines, which may be paragraphs, into sentences; without it every line is one sentence."""
    vocabulary: LearnedKind = "wordpiece"
    """The kind of vocabulary that is learned where data.tokenizer gives none."""
    word_splitter: Literal["spaces", "punctuation"] = "spaces"
    """How an ELMo splits text into words: at spaces (tokenised text), or punctuation off as well (raw text)."""
    documents: Literal["blank_lines", "files"] = "blank_lines"
    """What a document of a *.txt file is: the text between blank lines, or the whole file."""
    packed: bool = False
    """Keep documents in one window of a GPT from attending to each other; let the sequences of a BERT's batch share
    rows, so that less padding is computed."""
    batch: int = 32
    """Sequences per step, over all devices."""
    ramp_from: int = 0
    """Sequences per step in the beginning, doubled at equal intervals until they are data.batch; 0 is no ramp.

    Differs: GPT-3's batch grew linearly with the tokens seen (Brown et al. 2020, appendix B); doubled, it takes few
    compilations and stays divisible over devices. The recipes leave it out.
    """
    ramp_steps: int = 0
    """The step at which the ramp reaches data.batch."""
    length: int = 128
    """Tokens per sequence, special tokens included."""
    phases: tuple[str, ...] = ()
    """Phases of one run with other lengths and batches, LENGTHxBATCH:STEPS each, as 128x256:900000 512x256:100000. It
    takes the place of data.length, data.batch and steps."""
    context: Context = "sentence"
    """What a sentence of a tagging task is read with. document: as much of the document around it as fits data.length;
    files are *.conll (-DOCSTART- begins a document) or *.conllu (# newdoc)."""
    max_predictions: int = 0
    """The most masked tokens per sequence (max_predictions_per_seq); 0 is length times masked-fraction, rounded up."""
    masking: MaskingKind = "pieces"
    """What a BERT masks. pieces: each piece by itself, as the original's first models. whole_words: all pieces of a
    word or none, as its later ones (do_whole_word_mask). spans: runs of one to ten words, as SpanBERT. ernie: units of
    data.units and data.gazetteer, each by a draw of its own, as ERNIE 1.0."""
    sequences: Literal["pairs", "dialogues"] = "pairs"
    """What a BERT's sequences are. pairs: of sentences. dialogues: three turns of a dialogue with their roles, half of
    them with a fake one (ERNIE's dialogue language model)."""
    units: UnitKind = "off"
    """How text that is written without spaces is cut into words, to be masked together. spans: as "words" and
    "entities" of *.jsonl rows say. jieba: by the segmenter of that name, for Chinese."""
    gazetteer: str = ""
    """A file with the name of an entity in each line; the longest name that stands in a text is one unit."""
    unit_fraction: float = 0.5
    """The share of sequences that an ERNIE masks by units; the others are masked by pieces. data.masking-stages takes
    its place."""
    masking_stages: tuple[str, ...] = ()
    """What an ERNIE masks in which steps: pieces, phrases and entities, each but the last with its steps, as
    pieces:50000 phrases:50000 entities."""
    masking_copies: int = 0
    """How many epochs have masks and pairs of their own, which then come again (dupe_factor); 0: all have."""
    masked_fraction: str = "0.15"
    """The share of a sequence's tokens that is masked and predicted (masked_lm_prob). FIRST:LAST, as 0.3:0.15: it
    changes evenly from step to step."""
    masked_steps: int = 0
    """The step at which data.masked-fraction has its second value; 0 is the run's last."""
    mask_token_fraction: float = 0.8
    """The share of masked tokens that read [MASK]."""
    random_token_fraction: float = 0.1
    """The share of masked tokens that read any token of the vocabulary; what is left stays as it is."""
    next_label: Literal[0, 1] = 0
    """The class of a pair whose second text follows the first: 0 as BERT's original, 1 as ERNIE 1.0."""
    span_boundary: bool = False
    """Predict each token of a masked span from the two tokens beside it too, by a head of its own (SpanBERT's span
    boundary objective)."""
    short_fraction: float = 0.1
    """The share of documents that is cut into shorter sequences (short_seq_prob)."""
    word_types: int = 0
    """Rows of the table of a batch's distinct words (ELMo), three of them special; doubled for a batch with more.
    0: as many as there could be."""
    features: Literal["disk", "off"] = "disk"
    """Where the outputs of a frozen backbone are kept. disk: in the run's folder, computed once for all steps. off:
    nowhere, computed for each step."""
    cache_gb: float = 20.0
    """Gigabytes of local disk in which each process keeps parts of shards that lie in a bucket."""
    negatives: int = 8192
    """How many words are sampled as negatives for each step and direction (sampled softmax); 0 is the softmax over all
    words."""

    def __post_init__(self) -> None:
        # Messages spell an option as the command line does, so that it can be copied from there.
        if self.batch < 1:
            raise ValueError(f"data.batch={self.batch} is not a positive number of sequences")
        if self.length < 1:
            raise ValueError(f"data.length={self.length} is not a positive number of tokens")
        if self.max_predictions < 0:
            raise ValueError(f"data.max-predictions={self.max_predictions} is not a number of tokens; give 0 or more")
        if not 0.0 <= self.cache_gb < math.inf:
            raise ValueError(f"data.cache-gb={self.cache_gb} is not a number of gigabytes from 0 on")
        # The first three rows of the table are for nothing, <S> and </S> (`elmo_char_ids.FIRST_WORD`).
        if self.word_types < 0 or 0 < self.word_types < 3:
            raise ValueError(f"data.word-types={self.word_types} has no room for the three marks; give more, or 0")
        if self.negatives < 0:
            raise ValueError(f"data.negatives={self.negatives} is not a number of words (0: the whole vocabulary)")
        self._check_languages()
        self._check_masking()
        self._check_phases()
        for name in ("short_fraction", "dev_fraction"):
            value = getattr(self, name)
            # `not a <= x < b` refuses NaN as well, for which every comparison is false.
            if not 0.0 <= value < 1.0:
                raise ValueError(f"data.{name.replace('_', '-')}={value} is not in [0, 1)")
        # A text held out for all would be of none of the sources.
        if mixture_of(self.path) and self.dev:
            raise ValueError("data.dev has no meaning for a mixture; give data.dev-fraction, or prepare each source")
        if self.dev and self.dev_fraction:
            raise ValueError("data.dev and data.dev-fraction both hold out text; give one of them")
        # The ramp doubles up to exactly the batch, and has a step at least for each size.
        if self.ramp_from or self.ramp_steps:
            sizes = self._ramp()
            # The last size of the ramp is half the batch, which follows by one more doubling.
            if self.ramp_from < 1 or self.ramp_steps < len(sizes) or sizes[-1:] != [self.batch // 2] or self.batch % 2:
                raise ValueError(
                    f"data.ramp-from={self.ramp_from} does not double to data.batch={self.batch} within "
                    f"data.ramp-steps={self.ramp_steps}; give half, a quarter, … of the batch, and a step for each size"
                )

    def _check_languages(self) -> None:
        if self.languages and self.path:
            raise ValueError("data.languages and data.path both name the text; give one of them")
        if not 0.0 <= self.language_exponent < math.inf:
            raise ValueError(f"data.language-exponent={self.language_exponent} is not a number from 0 on")
        # As for a mixture, which the languages become.
        if self.languages and self.dev:
            raise ValueError("data.dev has no meaning for several languages; give data.dev-fraction, or prepare each")

    def _check_masking(self) -> None:
        # One number, or two with a colon between them. `not a <= x < b` refuses NaN as well.
        parts = self.masked_fraction.split(":")
        try:
            shares = [float(part) for part in parts]
            fits = len(parts) <= 2 and all(0.0 <= share < 1.0 for share in shares)
        except ValueError:
            shares, fits = [], False
        if not fits:
            raise ValueError(
                f"data.masked-fraction={self.masked_fraction} is neither a share in [0, 1) nor two of them, as 0.3:0.15"
            )
        # One way to write a share: a run that was given .2 or 0.20, or has the number 0.2 in its run.json, is the same.
        object.__setattr__(self, "masked_fraction", ":".join(map(str, shares)))
        for name, unit in (("masking_copies", "epochs"), ("masked_steps", "steps")):
            if getattr(self, name) < 0:
                option = f"data.{name.replace('_', '-')}"
                raise ValueError(f"{option}={getattr(self, name)} is not a number of {unit}; give 0 or more")
        if self.masked_steps and ":" not in self.masked_fraction:
            raise ValueError("data.masked-steps has no meaning for one share; give --data.masked-fraction FIRST:LAST")
        mask, other = self.mask_token_fraction, self.random_token_fraction
        # In floats 0.9 + 0.1 may be a little more than 1.
        if not (0.0 <= mask <= 1.0 and 0.0 <= other and mask + other <= 1.0 + 1e-9):
            raise ValueError(
                f"data.mask-token-fraction={mask} and data.random-token-fraction={other} are no shares of a whole; "
                "give two that are at most 1 together"
            )
        if not 0.0 <= self.unit_fraction <= 1.0:
            raise ValueError(f"data.unit-fraction={self.unit_fraction} is not in [0, 1]")
        _ = stages_of(self.masking_stages)
        if self.masking_stages and self.masking != "ernie":
            raise ValueError("data.masking-stages has no meaning without units; give --data.masking ernie too")
        if self.span_boundary and self.masking != "spans":
            raise ValueError("data.span-boundary has no meaning without spans; give --data.masking spans too")

    @property
    def masked_fractions(self) -> tuple[float, float]:
        """Returns the share of tokens that is masked in the first step and in the last."""
        first, _, last = self.masked_fraction.partition(":")
        return float(first), float(last or first)

    def masked_fraction_at(self, step: int | None) -> float:
        """Returns the share of tokens that is masked in a step; None: as in the last."""
        first, last = self.masked_fractions
        # Held-out sequences have the last share, so that figures of all steps are comparable.
        # masked_steps is known by now: `train.setup` sets it to the run's length where it is 0.
        if first == last or step is None or step >= self.masked_steps - 1:
            return last
        return first + (last - first) * step / (self.masked_steps - 1)

    @property
    def slots(self) -> int:
        """Returns the masked slots of a sequence, P: `max_predictions`, or a fraction of the length, rounded up: 20 of
        128, 77 of 512."""
        # Rounded first: 100 · 0.07 is 7.000000000000001 in floats, and not eight slots.
        # One slot at least, since the original masks a token of every sequence.
        expected = self.length * max(self.masked_fractions)
        # An ERNIE's number varies: four deviations of it, for units of two pieces.
        if self.masking == "ernie":
            expected = min(expected + 4 * math.sqrt(2 * expected), self.length)
        return self.max_predictions or max(math.ceil(round(expected, 6)), 1)

    def _check_phases(self) -> None:
        if not self.phases:
            return
        last = phases_of(self.phases)[-1]
        if last.steps:
            raise ValueError(f"data.phases: {self.phases[-1]!r} has what is left of the steps; leave its number out")
        if (last.length, last.batch) != (self.length, self.batch):
            raise ValueError(
                f"data.length={self.length} and data.batch={self.batch} are not those of the last of data.phases, "
                f"{self.phases[-1]!r}; give --data.phases with the numbers that you want"
            )
        if self.ramp_from:
            raise ValueError("data.phases and data.ramp-from both change the batch; give one of them")

    @property
    def stretches(self) -> tuple[Phase, ...]:
        """Returns the phases; one where there are no others."""
        return phases_of(self.phases) if self.phases else (Phase(0, self.length, self.batch, 0),)

    def at(self, step: int) -> "DataConfig":
        """Returns the settings of the phase that a step is in."""
        return _in_phase(self, phase_number(self.stretches, step)) if self.phases else self

    def _ramp(self) -> list[int]:
        """Returns the sizes of a batch on the ramp: 16, 32, … to half of it."""
        sizes, size = [], self.ramp_from
        # 0 < size: without a ramp there are no sizes, and doubling 0 would never end.
        while 0 < size < self.batch:
            sizes.append(size)
            size *= 2
        return sizes

    def batch_size_at(self, step: int) -> int:
        """Returns the sequences of a step: those of its phase, or fewer on the ramp."""
        if self.phases:
            return self.at(step).batch
        # Without a ramp `ramp_steps` is 0, so that every step has the whole batch.
        if step >= self.ramp_steps:
            return self.batch
        sizes = self._ramp()
        # Stages of equal length, in whole steps.
        return sizes[step * len(sizes) // self.ramp_steps]

    def examples_before(self, step: int) -> int:
        """Returns the sequences of all steps before this one: every one has a number, whatever ramp or phases."""
        if self.phases:
            phases = self.stretches
            ends = [*(phase.first for phase in phases[1:]), step]
            return sum(max(min(end, step) - p.first, 0) * p.batch for p, end in zip(phases, ends, strict=True))
        # Behind the ramp every step has a whole batch; on it each stage counts its steps so far.
        whole, sizes = max(step - self.ramp_steps, 0) * self.batch, self._ramp()
        for number, size in enumerate(
            sizes
        ):  # as in batch_size_at: stage n begins at n · ramp_steps / stages, rounded up
            # -(-a // b) rounds up: the first step at which batch_size_at's division gives this stage.
            first, last = (-(-at * self.ramp_steps // len(sizes)) for at in (number, number + 1))
            whole += size * max(min(step, last) - first, 0)
        return whole

    def size_at(self, step: int) -> StepSize:
        """Returns the size of a step without padding."""
        batch, length = self.batch_size_at(step), self.at(step).length
        return StepSize(batch, batch * length, batch * length)


@functools.lru_cache
def _in_phase(config: DataConfig, number: int) -> DataConfig:
    phase = config.stretches[number]
    return dataclasses.replace(config, phases=(), length=phase.length, batch=phase.batch)


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """A labelled task and where its examples lie.

    Files are *.tsv, *.csv, *.jsonl, *.conll and *.conllu, or TFDS sets as tfds:NAME[/CONFIG][:VERSION][:SPLIT],
    or files of publishers as published:SET/FILE, or of the Hugging Face hub as hf://datasets/OWNER/NAME/FILE.
    A column is a name, or a position counted from 1.
    """

    name: str = "off"
    """A named task, as `contexture recipes` lists them, with its own files and settings."""
    kind: Literal["off", Kind] = "off"
    """What is predicted. classify: a class of a text or a pair. regress: a number. tag: a tag for each word. choice:
    which alternative fits a text. span: the answer to a question, in the words of its context."""
    train: tuple[str, ...] = ()
    """Labelled examples to learn from: *.tsv, *.csv, *.jsonl, *.conll, *.conllu, or TFDS sets (tfds:NAME:SPLIT)."""
    dev: tuple[str, ...] = ()
    """Held-out labelled examples, looked at while training."""
    test: tuple[str, ...] = ()
    """Held-out labelled examples for `contexture evaluate --split test`."""
    dev_fraction: float = 0.0
    """The share of the rows of task.train that is held out, drawn by their numbers. It takes the place of task.dev."""
    bad_rows: BadRows = "few"
    """Rows that cannot be read. few: left out, but more than 1 % of a file are an error. fail: the first is an error.
    skip: left out, however many. They are counted and reported."""
    text: str = ""
    """The column of the text, of the first text of a pair, of the words, or of the question. Without it, one with a
    usual name (text, sentence, …). A column is a name, or a position counted from 1."""
    second: str = ""
    """The column of the second text of a pair, or of the context of a question. Without it, one with a usual name
    beside the first, where there is one."""
    choices: tuple[str, ...] = ()
    """The columns of the alternatives, or the one that holds a list of them. Without it, `choices`, or those with usual
    names (choice1 and choice2, ending0 and ending1, …)."""
    label: str = ""
    """The column of the label, the number, the tags or the answers. Without it, one with a usual name (label, category,
    tags, …)."""
    answer_start: str = ""
    """The column of the character, counted from 0, that the answer begins at in its context. Without it, `answer_start`
    or `start`; where there is none, the first place in the context that reads so."""
    header: Literal["auto", "yes", "no"] = "auto"
    """Whether tsv and csv begin with the names of their columns; auto is yes, unless columns are given by position."""
    labels: tuple[str, ...] = ()
    """All labels in their order, or names of the alternatives in theirs. Without it, those of task.train, sorted, or
    numbers."""
    class_weights: tuple[str, ...] = ()
    """The weights of labels in the loss: `balanced`, or LABEL=WEIGHT for some. Without it, all are 1."""
    symmetric: bool = False
    """Read a pair in both orders, and add the two outputs (GPT-1's similarity)."""
    lm_weight: float = 0.0
    """The weight of the auxiliary language-modelling loss (GPT-1's lambda); 0 disables it."""
    windows: Literal["off", "mean", "max"] = "off"
    """Read a text that is longer than data.length in windows of that length, each with the text's label to learn from,
    and answer with all of them. mean: the mean of their logits. max: the largest probability of each label."""
    stride: int = 128
    """Tokens from one window of a long context to the next."""
    question_length: int = 64
    """The most tokens of a question; a longer one loses its end."""
    answer_length: int = 30
    """The most tokens of an answer that is predicted."""
    n_best: int = 20
    """Starts, ends and answers that are compared for each question."""
    null_threshold: str = "dev"
    """How far the score of no answer must exceed that of the best one to be given: a number, `dev` (what was best for
    F1 on the held-out questions, where training has some without an answer), or `never`."""

    def __post_init__(self) -> None:
        self._check_span()
        if not 0.0 <= self.dev_fraction < 1.0:
            raise ValueError(f"task.dev-fraction={self.dev_fraction} is not in [0, 1)")
        if self.dev and self.dev_fraction:
            raise ValueError("task.dev and task.dev-fraction both hold out examples; give one of them")
        # A label's place in the list is its number: one that is given twice would have two.
        if len(set(self.labels)) != len(self.labels):
            raise ValueError("task.labels names a label twice; give each once")
        for name in ("second", "symmetric"):
            if getattr(self, name) and not self._reads(name):
                raise ValueError(f"task.{name} has no meaning for task.kind={self.kind}; leave it out")
        if self.windows != "off" and (not self._reads("windows") or self.symmetric):
            other = "task.symmetric" if self._reads("windows") else f"task.kind={self.kind}"
            raise ValueError(f"task.windows has no meaning for {other}; leave it out")
        if self.choices and not self._reads("choices"):
            raise ValueError(f"task.choices has no meaning for task.kind={self.kind}; leave it out")
        if len(set(self.choices)) != len(self.choices):
            raise ValueError("task.choices names a column twice; give each once")
        if self.kind == "choice" and len(self.labels) == 1:
            raise ValueError("task.labels names a single alternative; give a name for each, or none")
        if not 0.0 <= self.lm_weight < math.inf:
            raise ValueError(f"task.lm-weight={self.lm_weight} is not a number from 0 on")
        if not self._reads("labels") and (self.labels or self.class_weights):
            raise ValueError(
                f"task.labels and task.class-weights have no meaning for task.kind={self.kind}; leave them out"
            )

    def _reads(self, option: str) -> bool:
        """Returns whether an option has a meaning for the kind of task; without a task, none is checked."""
        return self.kind == "off" or option in KINDS[self.kind].options

    def _check_span(self) -> None:
        for name in ("stride", "question_length", "answer_length", "n_best"):
            if getattr(self, name) < 1:
                raise ValueError(f"task.{name.replace('_', '-')}={getattr(self, name)} is not a positive number")
        if self.null_threshold not in ("dev", "never"):
            # float() also reads nan and inf, which are no thresholds.
            try:
                finite = math.isfinite(float(self.null_threshold))
            except ValueError:
                finite = False
            if not finite:
                raise ValueError(f"task.null-threshold={self.null_threshold} is no number, and neither dev nor never")
