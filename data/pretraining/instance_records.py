"""Training instances as the records of BERT's original script: a tf.train.Example each, in TFRecord files.

    message Example   { Features features = 1; }
    message Features  { map<string, Feature> feature = 1; }       each entry: key = 1, value = 2
    message Feature   { FloatList float_list = 2; Int64List int64_list = 3; }
    message …List     { repeated … value = 1 [packed]; }

Differs: the order of a map's entries is not fixed, and here is the one in which the script names the features.
"""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from contexture.data.errors import DataError
from contexture.data.plain_files import IN_FOLDERS, check_plain, inner_suffix
from contexture.data.pretraining.create_instances import Instance, InstanceOptions, create_instances, read_documents
from contexture.data.protobuf import message_field, message_fields, packed, unpacked
from contexture.data.storage import atomic_folder
from contexture.data.text import hub, tfds
from contexture.data.text.sources import Source
from contexture.data.tfrecord import begins_as_records, write_record
from contexture.data.tokenizers.wordpiece import WordPiece

FLOATS = "masked_lm_weights"
FEATURES = (
    "input_ids",
    "input_mask",
    "segment_ids",
    "masked_lm_positions",
    "masked_lm_ids",
    FLOATS,
    "next_sentence_labels",
)
_FLOAT_LIST, _INT64_LIST = 2, 3
# tf_examples.tfrecord, train.tfrecords.gz, wiki.tfrecord-00001-of-00100
_NAME = re.compile(r"\.tf_?rec(ords?)?(-\d+-of-\d+)?(\.(gz|gzip|zlib))?$", re.IGNORECASE)


class Written(NamedTuple):
    """How many documents, sentences and tokens were read, how many instances were written."""

    documents: int
    sentences: int
    tokens: int
    instances: int


def write_instances(
    sources: Sequence[Source],
    tokenizer: WordPiece,
    options: InstanceOptions,
    to: Path,
    *,
    seed: int,
    files: int,
    check: Callable[[], object],
) -> Written:
    """Writes the instances of text into a new folder, as `create_pretraining_data.py` would, and the vocabulary.

    As in the original, all documents and all instances are in memory: two or four bytes for each token of the text, and
    a record for each instance.

    Args:
        sources: the text, a sentence in each line.
        tokenizer: the vocabulary.
        options: the script's flags.
        to: the folder.
        seed: random_seed.
        files: how many files the instances are dealt to, in turn.
        check: called between pieces of the work; may raise to stop it.

    Raises:
        DataError: for text that cannot be read or holds no sentence, and a folder that is taken.
    """
    documents = read_documents(sources, tokenizer, lambda raw: check())
    sentences = sum(map(len, documents))
    tokens = sum(len(sentence) for document in documents for sentence in document)
    generator = random.Random(seed)
    # As records, which take a tenth of what lists of numbers do.
    # Lazily: only one instance at a time is a list of numbers.
    instances = create_instances(documents, tokenizer, options, generator, check)
    records = [record_of(instance, options) for instance in instances]
    # The last question to the generator: it depends on the number of instances alone, not on what they are.
    generator.shuffle(records)
    with atomic_folder(to) as part:
        for number in range(files):
            with (part / f"instances-{number:05d}-of-{files:05d}.tfrecord").open("wb") as file:
                # Round-robin: instance n is in file n % files.
                for record in records[number::files]:
                    write_record(file, record)
            check()
        # Records hold ids: without their vocabulary they mean nothing.
        tokenizer.save(part / "tokenizer")
    return Written(len(documents), sentences, tokens, len(records))


def record_of(instance: Instance, options: InstanceOptions) -> bytes:
    """Returns the tf.train.Example of an instance, padded with zeros to the length and the number of predictions."""
    tokens, segments, slots, labels, is_random = instance
    # Padding is 0 in every feature, whatever the id of [PAD] is.
    short, free = options.length - len(tokens), options.predictions - len(slots)
    whole = {
        "input_ids": tokens + [0] * short,
        "input_mask": [1] * len(tokens) + [0] * short,
        "segment_ids": segments + [0] * short,
        "masked_lm_positions": slots + [0] * free,
        "masked_lm_ids": labels + [0] * free,
        "next_sentence_labels": [int(is_random)],
    }
    # A float each, where 0 says that a slot is none.
    weights = np.array([1.0] * len(slots) + [0.0] * free, "<f4").tobytes()
    features = b""
    for name in FEATURES:
        number, content = (_FLOAT_LIST, weights) if name == FLOATS else (_INT64_LIST, packed(whole[name]))
        # Of a Feature, which holds a list, which holds the packed values.
        feature = message_field(number, message_field(1, content))
        features += message_field(1, message_field(1, name.encode()) + message_field(2, feature))
    return message_field(1, features)


def features_of(record: bytes) -> dict[str, NDArray[np.generic]]:
    """Returns the features of a tf.train.Example by name: u64 [n], or f32 [n] of floats; others are left out.

    Raises: ValueError, IndexError or OverflowError for bytes that are no such message.
    """
    features: dict[str, NDArray[np.generic]] = {}
    # A name that comes twice counts by its last entry, as in any map of protobuf.
    for name, feature in _entries(record):
        for number, values in message_fields(feature):
            if number == _INT64_LIST:
                # Packed, or a field for each number, as old writers have it.
                numbers = [value for _, value in message_fields(_bytes(values))]
                parts = [
                    np.array([value], np.uint64) if isinstance(value, int) else unpacked(value) for value in numbers
                ]
                features[name] = np.concatenate(parts) if parts else np.zeros(0, np.uint64)
            elif number == _FLOAT_LIST:
                # Four bytes each, whether one field has all of them or each its own.
                floats = b"".join(_bytes(value) for _, value in message_fields(_bytes(values)))
                features[name] = np.frombuffer(floats, "<f4")
    return features


def _entries(record: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields the names and features of an Example."""
    for number, features in message_fields(record):
        for _, entry in message_fields(_bytes(features)) if number == 1 else ():
            # A map's entry is a message of its own; what it lacks has its type's default.
            pair = {1: b"", 2: b"", **dict(message_fields(_bytes(entry)))}
            yield _bytes(pair[1]).decode("utf-8", "replace"), _bytes(pair[2])


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where a message is expected")
    return value


def record_files(paths: Sequence[str], what: str) -> list[Path]:
    """Returns the TFRecord files that paths name: files by their names or first bytes, the sorted ones of a folder by
    their names; [] where they are text.

    what: the option that names them.

    Raises: DataError for TFRecords together with text.
    """
    # Both kinds are collected first: an error then names one of each.
    files: list[Path] = []
    text = ""
    for path in paths:
        # Sets of a library or a hub are text.
        if path.startswith(tfds.PREFIX) or hub.is_address(path):
            text = text or path
            continue
        check_plain(path)
        place = Path(path)
        # Sorted, so that a folder is the same records on every machine.
        inside = sorted(place.iterdir()) if place.is_dir() else [place]
        records = [file for file in inside if file.is_file() and _NAME.search(file.name)]
        # The script's own example calls its files *.tfrecord, but any name may be given to it.
        if not records and place.is_file() and begins_as_records(place):
            records = [place]
        files += records
        if not records:
            text = text or path
        # In a folder any text would be read if there were no records.
        elif texts := [file for file in inside if inner_suffix(file) in IN_FOLDERS]:
            text = text or str(texts[0])
    if files and text:
        raise DataError(f"{what} names TFRecords ({files[0]}) together with text ({text}); give either by itself")
    # By what they are, not by their names: a link to a file is the same file.
    if len({file.resolve() for file in files}) < len(files):
        raise DataError(f"{what} names a TFRecord file twice; give each once")
    return files
