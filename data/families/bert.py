"""BERT: pairs of sentences with [CLS] and [SEP] around them, some of their pieces masked (Devlin et al. 2018)."""

from contexture.data.cancel import CancelToken
from contexture.data.config import DataConfig
from contexture.data.families.base import TextFamily
from contexture.data.layouts import Marks, bert_marks
from contexture.data.pretraining.sentence_pairs import HeldOutPairs, PairBatches
from contexture.data.pretraining.sequence_batches import pair_fields
from contexture.data.pretraining.shards import Shards
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.wordpiece import WordPiece, wordpiece


class BertText(TextFamily):
    name = "bert"
    called, plain_name = "a BERT", "BERT"
    instead = "which fills gaps: contexture fill"
    # Segments are the original's token types: released models have two, 0 for the first text and 1 for the second.
    marks_segments = marks_ends = True
    stream = "sentence_pairs"
    options = ("lowercase",)
    pretraining_options = (
        "split_sentences",
        "packed",
        "max_predictions",
        "masking",
        "masking_copies",
        "units",
        "gazetteer",
        "unit_fraction",
        "masking_stages",
        "masked_fraction",
        "masked_steps",
        "mask_token_fraction",
        "random_token_fraction",
        "next_label",
        "span_boundary",
        "short_fraction",
    )
    sequences = {"tokens": "i32 BL", "segments": "i32 BL", "mask": "i32 BL"}

    def pretraining_fields(self, config: DataConfig) -> dict[str, str]:
        return pair_fields(config)

    def open_batches(
        self, shards: Shards, config: DataConfig, seed: int, cancel: CancelToken, parts: int = 1, devices: int = 1
    ) -> PairBatches:
        # `cancel` is asked between blocks while the sequences of an epoch are counted, once over the whole text.
        return PairBatches(shards, config, seed=seed, parts=parts, devices=devices, cancel=cancel)

    def open_held_out(
        self, shards: Shards, config: DataConfig, lanes: int, cancel: CancelToken, devices: int = 1
    ) -> HeldOutPairs:
        # Always by seed 0, so that runs of every seed are compared on the same masks.
        return HeldOutPairs(shards, config, devices=devices, cancel=cancel)

    def why_not(self, kind: str) -> str:
        if kind == WordPiece.kind:
            return ""
        return (
            f"bert reads a vocabulary of kind wordpiece, with [MASK] and its like, and this one is {kind}; "
            "give a vocab.txt as --data.tokenizer, or learn one with --data.vocabulary wordpiece"
        )

    def check_task_vocabulary(self, tokenizer: Tokenizer) -> None:
        wordpiece(tokenizer)

    def marks(self, tokenizer: Tokenizer) -> Marks:
        # [CLS] a [SEP] b [SEP].
        return bert_marks(tokenizer)

    def ends(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        # A text alone is `[CLS] text [SEP]`.
        pieces = wordpiece(tokenizer)
        return pieces.cls, pieces.sep
