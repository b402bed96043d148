"""Batches of BERT's pretraining from TFRecords of the original script: sequences that were paired and masked before.

Differs: the original shuffles a buffer of 100 records of up to four files at a time, so that no two runs agree and none
resumes. Here an epoch is every record once, in an order that depends on (seed, epoch) alone.
"""

import numpy as np

from contexture.data import rng
from contexture.data.binary_files import I64
from contexture.data.config import DataConfig
from contexture.data.layouts import Batch
from contexture.data.pretraining.record_store import RecordStore, check_sizes
from contexture.data.pretraining.sequence_batches import HeldOutSequences, SequenceBatches


class RecordBatches(SequenceBatches):
    """Sequence n belongs to epoch `n // examples_per_epoch`; masks are those of the records, the same in each epoch."""

    def __init__(
        self,
        store: RecordStore,
        config: DataConfig,
        *,
        seed: int,
        split: str = "train",
        parts: int = 1,
        devices: int = 1,
    ) -> None:
        """Opens a split; arguments as of `PairBatches`.

        Raises: DataError for records that are longer than the run's sequences, or have more predictions.
        """
        self.store, self.split, self.seed = store, split, seed
        # Shorter ones are padded.
        check_sizes(store.length, store.predictions, config, f"{store.folder}: each record")
        super().__init__(store.tokenizer, config, store.count(split), parts, devices)

    def _places(self, numbers: I64) -> I64:
        """Returns which records of the split the sequences are."""
        # Held out, each is read once, in the order of the files.
        if self.split == "dev":
            return numbers % self.examples_per_epoch
        places = np.empty_like(numbers)
        # A batch may begin in one epoch and end in the next.
        epochs, at = np.divmod(numbers, self.examples_per_epoch)
        for e in np.unique(epochs).tolist():
            mine = epochs == e
            # Without a table of all records: only the places that are asked for are computed.
            key = rng.key(rng.RECORD_ORDER, self.seed, e)
            places[mine] = rng.permutation_at(key, at[mine], self.examples_per_epoch)
        return places

    def lengths_of(self, numbers: I64) -> I64:
        return self.store.read(self.split, self._places(numbers))["tokens"].astype(np.int64)

    def describe_source(self) -> str:
        held_out = self.store.count("dev")
        return f"{self.store.count('train'):,} records to train on, {held_out:,} held out"

    def sequences(self, numbers: I64, step: int | None = None) -> Batch:
        rows = self.store.read(self.split, self._places(numbers))
        B, L, P = len(rows), self.config.length, self.config.slots
        # Zeros behind the tokens and slots of the records, up to those of the run.
        short, free = ((0, 0), (0, L - self.store.length)), ((0, 0), (0, P - self.store.predictions))
        # The original's mask is a prefix of ones, which its length says.
        mask_BL = np.arange(L) < rows["tokens"][:, None]
        tokens_BL = np.pad(rows["input_ids"].astype(np.int32), short)
        return {
            # Records are padded with 0, whatever [PAD] is.
            "tokens": np.where(mask_BL, tokens_BL, self.tokenizer.pad).astype(np.int32),
            "segments": np.pad(rows["segment_ids"].astype(np.int32), short),
            "mask": mask_BL.astype(np.int32),
            "slots": np.pad(rows["masked_lm_positions"].astype(np.int32), free),
            "labels": np.pad(rows["masked_lm_ids"].astype(np.int32), free),
            "slot_weights": np.pad(rows["masked_lm_weights"].astype(np.float32), free),
            # The original's label: 1 is random.
            "is_random": rows["next_sentence_labels"][:, 0].astype(np.int32),
            "valid": np.ones(B, np.float32),
        }


class HeldOutRecords(HeldOutSequences):
    """Every held-out record once, in the order of the files."""

    def __init__(self, store: RecordStore, config: DataConfig, *, devices: int = 1) -> None:
        super().__init__(RecordBatches(store, config, seed=0, split="dev", devices=devices))
