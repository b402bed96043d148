"""What is read and how lines of text become batches. Plain dataclasses: importing this costs nothing."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The road from text to batches."""

    path: tuple[str, ...] = ()
    """Text (*.txt, *.jsonl): files or folders; or one folder of shards made by `contexture prepare`."""
    dev: tuple[str, ...] = ()
    """Held-out text, like path."""
    dev_fraction: float = 0.0
    """Instead of dev: hold out this share of each file of path, its end, in whole documents where it has several."""
    tokenizer: str = ""
    """A tokenizer folder or a published vocab.txt; empty: learn the recipe's vocabulary on the text of path."""
    lowercase: bool = True
    """Lower-case and strip accents (the uncased models)."""
    split_sentences: bool = True
    """Lines may be paragraphs: split them into sentences. Off: every line is one sentence."""
    stream: Literal["sentence_pairs"] = "sentence_pairs"
    """How lines are drawn from documents: BERT's pairs of sentence runs."""
    batch: int = 32
    """Lines per step, over the whole job."""
    length: int = 128
    """Tokens per line, special tokens counted."""
    predictions: int = 20
    """Most positions predicted in a line (max_predictions_per_seq)."""
    masked_fraction: float = 0.15
    """Share of a line's tokens that is predicted (masked_lm_prob)."""
    short_fraction: float = 0.1
    """Share of documents cut into shorter lines (short_seq_prob)."""

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError(f"data.batch={self.batch} is not a positive number of lines")
        if self.length < 8:
            raise ValueError(f"data.length={self.length} is too short for a pair of sentences; give at least 8")
        if not 1 <= self.predictions <= self.length:
            raise ValueError(f"data.predictions={self.predictions} is not between 1 and data.length={self.length}")
        for name in ("masked_fraction", "short_fraction", "dev_fraction"):
            value = getattr(self, name)
            if not 0.0 <= value < 1.0:
                raise ValueError(f"data.{name.replace('_', '-')}={value} is not in [0, 1)")
        if self.dev and self.dev_fraction:
            raise ValueError("data.dev and data.dev-fraction both hold out text; give one of them")
