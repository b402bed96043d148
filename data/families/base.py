"""What differs between model families in reading text: `TextFamily`, with one object for each family."""

from collections.abc import Sequence
from typing import ClassVar

from contexture.data.batches import Batches, HeldOut
from contexture.data.cancel import CancelToken
from contexture.data.config import DataConfig, Family, Stream
from contexture.data.families.splitting import (
    SentenceSplitter,
    Units,
    WordSplitter,
    sentences_in_pieces,
    words_in_pieces,
)
from contexture.data.layouts import Batch, Marks, token_lines
from contexture.data.pretraining.shards import Shards
from contexture.data.tokenizers.base import Tokenizer, with_added_tokens
from contexture.data.tokenizers.open_vocabulary import OpenVocabulary

SHORTEST_PAIR = 8
"""Tokens of a sequence that has room for a pair of sentences worth learning from."""


class TextFamily:
    """How a family reads text. The methods here do what most families do; each family overrides the others.

    The class attributes say the differences; code outside of the families asks them, and never for a name.
    """

    # What it is called
    name: ClassVar[Family]
    called: ClassVar[str]
    """One of the family, in messages: "a BERT"."""
    plain_name: ClassVar[str]
    """The family in running text: "BERT"."""
    instead: ClassVar[str]
    """What it does, where it is asked for something else: "which writes on: contexture generate"."""
    # What its sequences are
    reads_words: ClassVar[bool] = False
    """Whether it reads whole words without special tokens; the two texts of a pair are then sequences of their own, and
    there are no positions that end."""
    reads_characters: ClassVar[bool] = False
    """Whether a word is read by its characters, so that any word is known."""
    is_causal: ClassVar[bool] = False
    """Whether a token sees none after it. A word is then read at its last piece, and a text at its last token; and each
    text of a task predicts its own next tokens too."""
    marks_segments: ClassVar[bool] = False
    """Whether tokens have types: 0 for the first text, 1 for the second."""
    marks_ends: ClassVar[bool] = False
    """Whether a text that is read alone has special tokens before and after it."""

    @property
    def possessive(self) -> str:
        """`called` as a possessive: "an ELMo's"."""
        return self.called + ("'" if self.called.endswith("s") else "'s")

    # Pretraining

    stream: ClassVar[Stream | None] = None
    """How sequences are drawn from documents; None: it is not pretrained."""
    continues_rows: ClassVar[bool] = False
    """Whether row b of a pretraining batch continues row b of the one before, so that their number never changes."""
    options: ClassVar[tuple[str, ...]] = ()
    """Fields of DataConfig that have a meaning for this family alone, or for few."""
    pretraining_options: ClassVar[tuple[str, ...]] = ()
    """Fields of DataConfig that have a meaning for this family in pretraining only."""

    task_tokens: ClassVar[tuple[str, ...]] = ()
    """Special tokens that only a task has; they are added behind the vocabulary."""

    # Batch fields: name → dtype and dims

    sequences: ClassVar[dict[str, str]]
    """What the backbone reads of sequences."""
    own_tokens: ClassVar[dict[str, str]] = {}
    """What a task's batches hold besides, to predict the tokens of its texts."""

    def pretraining_fields(self, config: DataConfig) -> dict[str, str]:
        """Returns the fields of a training batch; held-out batches may lack some."""
        # The families that are pretrained add their targets.
        return self.sequences

    def check_pretraining(self, config: DataConfig) -> None:
        """Raises: ValueError for sequences that are too short, and options that have no meaning."""
        # BERT's. The other families draw sequences otherwise, and check those.
        check_pair_length(config)

    def open_batches(
        self, shards: Shards, config: DataConfig, seed: int, cancel: CancelToken, parts: int = 1, devices: int = 1
    ) -> Batches:
        """Returns the batches of a pretraining.

        Args:
            shards: the text.
            config: the run's data.
            seed: of the batches.
            cancel: may raise to stop the planning.
            parts: microbatches of a batch.
            devices: how many devices share a batch.
        """
        # Static vectors alone keep this: they are imported.
        raise NotImplementedError(f"{self.called} is not pretrained")

    def open_held_out(
        self, shards: Shards, config: DataConfig, lanes: int, cancel: CancelToken, devices: int = 1
    ) -> HeldOut:
        """Returns the held-out batches of a pretraining.

        Args:
            shards: the text.
            config: the run's data.
            lanes: for ELMo, how many rows of a batch carry text, 0 for all.
            cancel: may raise to stop the planning.
            devices: how many devices share a batch.
        """
        raise NotImplementedError(f"{self.called} is not pretrained")

    # Vocabulary

    def why_not(self, kind: str) -> str:
        """Returns why the model cannot read a vocabulary of this kind, and what to give; "" where it can."""
        raise NotImplementedError

    def why_not_learned(self, kind: str) -> str:
        """Returns why no new run should begin with a vocabulary of this kind; "" where it may."""
        # A GPT reads kinds that no new run should begin with; for the others both are the same.
        return self.why_not(kind)

    def check_task_vocabulary(self, tokenizer: Tokenizer) -> None:
        """Raises: DataError where a task cannot be laid out with this vocabulary."""
        raise NotImplementedError

    def with_task_tokens(self, tokenizer: Tokenizer) -> Tokenizer:
        """Returns the vocabulary with any missing `task_tokens` appended."""
        # Appended, so that the ids of the pretrained vocabulary stay.
        missing = [name for name in self.task_tokens if name not in tokenizer.specials]
        return with_added_tokens(tokenizer, missing) if missing else tokenizer

    # Layout of a task's examples

    def marks(self, tokenizer: Tokenizer) -> Marks | None:
        """Returns the special tokens of a pair: before the first text, between the two, at the end. None: it has none,
        or this vocabulary lacks them."""
        return None

    # Texts by themselves: vectors, attention, scores

    def ends(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """Returns the special tokens before and behind a text that is read alone, or ()."""
        return ()

    def sentence_splitter(self, tokenizer: Tokenizer | OpenVocabulary, length: int) -> SentenceSplitter:
        """Returns what splits sentences for a model of this length."""
        # Only an ELMo reads words outside its vocabulary, and it overrides this.
        assert not isinstance(tokenizer, OpenVocabulary)
        return sentences_in_pieces(tokenizer, length, self.ends(tokenizer))

    def word_splitter(self, tokenizer: Tokenizer | OpenVocabulary, length: int) -> WordSplitter:
        """Returns what splits words for a model of this length."""
        # As above.
        assert not isinstance(tokenizer, OpenVocabulary)
        return words_in_pieces(tokenizer, length, self.ends(tokenizer))

    def lines(
        self, sentences: Sequence[Units], rows: int, tokenizer: Tokenizer | OpenVocabulary, limit: int, length: int = 0
    ) -> Batch:
        """Sentences as the splitters return them → what the backbone reads.

        Args:
            sentences: a sequence each.
            rows: as in `layouts.token_lines`.
            tokenizer: the model's vocabulary.
            limit: the model's length.
            length: as in `layouts.token_lines`.
        """
        # As above.
        assert not isinstance(tokenizer, OpenVocabulary)
        # A chosen length may be above the model's, which has no more positions.
        return token_lines(sentences, rows, tokenizer.pad, limit, min(length, limit))  # pyright: ignore[reportArgumentType]

    def truncated_words(self, words: Sequence[str]) -> int:
        """Returns how many of the words lose their end however long the sentence is."""
        # Only an ELMo reads the beginning of a word alone.
        return 0

    def truncation(self, texts: str, length: int) -> str:
        """Returns a warning that these texts ("3 of 10 lines") were not read whole. length: the model's."""
        return f"truncated {texts}, longer than the model takes ({length} tokens)"


def check_pair_length(config: DataConfig) -> None:
    """Raises: ValueError for sequences without room for a pair of texts, or for the tokens to be masked."""
    if config.length < SHORTEST_PAIR:
        raise ValueError(
            f"data.length={config.length} is too short for a pair of sentences; give at least {SHORTEST_PAIR}"
        )
    if config.max_predictions > config.length:
        raise ValueError(
            f"data.max-predictions={config.max_predictions} is more than data.length={config.length}; lower it, or "
            "give 0 to follow the length"
        )
