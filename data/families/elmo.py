"""ELMo: lanes of words, read by their characters in both directions (Peters et al. 2018)."""

from collections.abc import Sequence
from typing import cast

from contexture.data.cancel import CancelToken
from contexture.data.config import DataConfig
from contexture.data.families.base import TextFamily
from contexture.data.families.splitting import (
    SentenceSplitter,
    SplitSentence,
    SplitWords,
    Units,
    WordSplitter,
    whole_words,
)
from contexture.data.layouts import Batch, elmo_lines
from contexture.data.mixed_paths import mixture_of
from contexture.data.pretraining.bilm_lanes import FIELDS, SAMPLED, HeldOutLanes, LaneBatches
from contexture.data.pretraining.shards import Shards
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.checked_text import check_characters
from contexture.data.tokenizers.elmo_char_ids import MAX_BYTES, are_cut
from contexture.data.tokenizers.open_vocabulary import OpenVocabulary
from contexture.data.tokenizers.word_level import Words, word_tokenizer


class ElmoText(TextFamily):
    name = "elmo"
    called, plain_name = "an ELMo", "ELMo"
    instead = "which gives vectors: contexture embed"
    reads_words = reads_characters = True
    stream = "lanes"
    # The state of each LSTM is carried from batch to batch, as in bilm-tf: a row has to go on where it stopped.
    continues_rows = True
    options = ("word_splitter", "word_types")
    pretraining_options = ("split_sentences", "negatives")
    # types: the characters of each distinct word, [R, 50]. index: for each place, a row of types.
    sequences = {"types": "i32 RW", "index": "i32 BL", "mask": "i32 BL"}

    def pretraining_fields(self, config: DataConfig) -> dict[str, str]:
        return {**FIELDS, **SAMPLED} if config.negatives else FIELDS

    def check_pretraining(self, config: DataConfig) -> None:
        # A lane may be of any length: it goes on in the next batch. So a row cannot be drawn from a source by itself.
        if mixture_of(config.path):
            raise ValueError(
                "data.path: a mixture is for a BERT or a GPT; an ELMo's rows continue from batch to batch: give paths "
                "without weights"
            )

    def open_batches(
        self, shards: Shards, config: DataConfig, seed: int, cancel: CancelToken, parts: int = 1, devices: int = 1
    ) -> LaneBatches:
        return LaneBatches(shards, config, seed=seed)

    def open_held_out(
        self, shards: Shards, config: DataConfig, lanes: int, cancel: CancelToken, devices: int = 1
    ) -> HeldOutLanes:
        # A lane is a row: there are never more of them than rows.
        return HeldOutLanes(shards, config, min(lanes or config.batch, config.batch))

    def why_not(self, kind: str) -> str:
        if kind == Words.kind:
            return ""
        return (
            f"elmo reads a vocabulary of kind words, and this one is {kind}; give a vocab.txt that begins with <S>, "
            "</S>, <UNK> as --data.tokenizer, or learn one with --data.vocabulary words"
        )

    def check_task_vocabulary(self, tokenizer: Tokenizer) -> None:
        word_tokenizer(tokenizer)

    def sentence_splitter(self, tokenizer: Tokenizer | OpenVocabulary, length: int) -> SentenceSplitter:
        split = word_tokenizer(tokenizer).words

        def words(text: str, origin: str = "the text", /) -> SplitSentence:
            # Any word can be read by its characters; only text that is no Unicode is refused.
            check_characters(text, origin)
            own = split(text)
            return SplitSentence(own, len(own), self.truncated_words(own))

        return words

    def word_splitter(self, tokenizer: Tokenizer | OpenVocabulary, length: int) -> WordSplitter:
        def words(words: Sequence[str], origin: str, spaced: Sequence[bool] | None = None, /) -> SplitWords:
            check_characters(" ".join(words), origin)
            # A word is never split: its vector comes from its characters.
            # `spaced` is not read: a word's characters are the same wherever it is.
            return whole_words(words)

        return words

    def lines(
        self, sentences: Sequence[Units], rows: int, tokenizer: Tokenizer | OpenVocabulary, limit: int, length: int = 0
    ) -> Batch:
        # An LSTM has no positions that end: `limit` does not count.
        return elmo_lines(cast(Sequence[Sequence[str]], sentences), rows, length)

    def truncated_words(self, words: Sequence[str]) -> int:
        # Bytes from the 49th on are not read, as in bilm-tf.
        return int(are_cut(words).sum())

    def truncation(self, texts: str, length: int) -> str:
        return f"truncated words of {texts}: only their first {MAX_BYTES} bytes are read"
