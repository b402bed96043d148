"""Constants that models and data state each for itself, since neither imports the other: they agree by name."""

import pytest

from contexture.data.pretraining import bilm_lanes, lm_windows, sentence_pairs
from contexture.data.tasks.batches import SEQUENCES
from contexture.data.tokenizers import elmo_char_ids
from contexture.models import bert, config, elmo, gpt, vectors
from contexture.models.layers import char_cnn
from contexture.train.config import FAMILIES, STREAMS


def test_characters_of_words_are_numbered_alike():
    assert elmo_char_ids.PADDING == char_cnn.PADDING == char_cnn.CHARACTERS, "the padding has no row in the table"
    assert elmo_char_ids.WIDTH == config.WORD_CHARS
    assert elmo_char_ids.FIRST_WORD == elmo.FIRST_WORD == max(elmo.BEGIN, elmo.END) + 1


def test_the_rows_of_special_words_are_where_the_model_reads_them():
    table = elmo_char_ids.word_table(elmo_char_ids.char_ids(["a"]), 8)
    assert elmo_char_ids.BEGIN_SENTENCE in table[elmo.BEGIN] and elmo_char_ids.END_SENTENCE in table[elmo.END]
    assert (table[elmo.FIRST_WORD, :3] == [elmo_char_ids.BEGIN_WORD, ord("a") + 1, elmo_char_ids.END_WORD]).all()


@pytest.mark.parametrize(
    ("backbone", "batches"),
    [
        (bert.FIELDS, (sentence_pairs.FIELDS, SEQUENCES["bert"])),
        (gpt.FIELDS, (lm_windows.FIELDS, SEQUENCES["gpt"])),
        (elmo.FIELDS, (SEQUENCES["elmo"],)),
        (elmo.LANE_FIELDS, (bilm_lanes.FIELDS,)),
        (vectors.FIELDS, (SEQUENCES["vectors"],)),
    ],
    ids=["bert", "gpt", "elmo", "elmo's lanes", "vectors"],
)
def test_batches_hold_what_a_backbone_reads(backbone: dict[str, str], batches: tuple[dict[str, str], ...]):
    assert all(fields.items() >= backbone.items() for fields in batches)


def test_each_family_has_a_configuration_and_a_stream():
    assert FAMILIES.keys() == SEQUENCES.keys() == STREAMS.keys() | {"vectors"}
