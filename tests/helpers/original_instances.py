"""BERT's create_pretraining_data.py the plain way: pieces as strings, one list after the other, one generator for all.

Written from the rules of the script alone, and sharing no code with the project, whose writer is compared with it: also
the tokenizer, the TFRecord files, their check sums and the protocol buffers are read here by hand.
"""

import struct
import unicodedata
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

Piece = str
CJK = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0xF900, 0xFAFF))
Features = dict[str, list[int] | list[float]]


class Flags(NamedTuple):
    max_seq_length: int = 128
    max_predictions_per_seq: int = 20
    masked_lm_prob: float = 0.15
    short_seq_prob: float = 0.1
    dupe_factor: int = 5
    random_seed: int = 12345
    do_whole_word_mask: bool = False


def pieces_of(line: str, vocabulary: list[str]) -> list[Piece]:
    """BasicTokenizer in lower case, then WordPiece."""
    spaced = "".join(" " if c.isspace() else "" if unicodedata.category(c) in ("Cc", "Cf") else c for c in line)
    spaced = "".join(f" {c} " if any(first <= ord(c) <= last for first, last in CJK) else c for c in spaced)
    words: list[str] = []
    for chunk in spaced.split():
        plain = [c for c in unicodedata.normalize("NFD", chunk.lower()) if unicodedata.category(c) != "Mn"]
        word = ""
        for c in plain:
            if unicodedata.category(c).startswith("P") or (c.isascii() and not c.isalnum()):
                words += [word, c]
                word = ""
            else:
                word += c
        words.append(word)
    known, found = set(vocabulary), list[Piece]()
    for word in filter(None, words):
        rest, of_word = word, list[Piece]()
        while rest:
            fits = [n for n in range(len(rest), 0, -1) if "##" * bool(of_word) + rest[:n] in known]
            if not fits:
                of_word = ["[UNK]"]
                break
            of_word.append("##" * bool(of_word) + rest[: fits[0]])
            rest = rest[fits[0] :]
        found += of_word
    return found


def instances_of(texts: list[str], vocabulary: list[str], flags: Flags) -> list[dict[str, Any]]:
    """What the script writes for the contents of its input files, in its order; features are padded."""
    rng = Random(flags.random_seed)
    documents: list[list[list[Piece]]] = [[]]
    for text in texts:
        # A last line feed is followed by no line.
        for line in text.removesuffix("\n").split("\n"):
            if not line.strip():
                documents.append([])
            elif pieces := pieces_of(line.strip(), vocabulary):
                documents[-1].append(pieces)
    documents = [document for document in documents if document]
    rng.shuffle(documents)
    instances = []
    for _ in range(flags.dupe_factor):
        for index in range(len(documents)):
            instances += _of_document(documents, index, vocabulary, flags, rng)
    rng.shuffle(instances)
    ids = {piece: number for number, piece in enumerate(vocabulary)}
    return [_features(masked, chosen, first, random, ids, flags) for masked, chosen, first, random in instances]


def _of_document(documents, index, vocabulary, flags, rng) -> list[tuple[list, list, int, bool]]:
    most = flags.max_seq_length - 3
    target = most
    if rng.random() < flags.short_seq_prob:
        target = rng.randint(2, most)
    found, chunk, size, i = [], [], 0, 0
    document = documents[index]
    while i < len(document):
        chunk.append(document[i])
        size += len(document[i])
        if i == len(document) - 1 or size >= target:
            end = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            a = sum(chunk[:end], [])
            b = []
            if len(chunk) == 1 or rng.random() < 0.5:
                is_random, other = True, index
                for _ in range(10):
                    other = rng.randint(0, len(documents) - 1)
                    if other != index:
                        break
                start = rng.randint(0, len(documents[other]) - 1)
                for sentence in documents[other][start:]:
                    b = b + sentence
                    if len(b) >= target - len(a):
                        break
                i -= len(chunk) - end
            else:
                is_random = False
                b = sum(chunk[end:], [])
            a = list(a)
            while len(a) + len(b) > most:
                side = a if len(a) > len(b) else b
                side.pop(0 if rng.random() < 0.5 else -1)
            tokens = ["[CLS]", *a, "[SEP]", *b, "[SEP]"]
            masked, chosen = _masked(tokens, vocabulary, flags, rng)
            found.append((masked, chosen, 2 + len(a), is_random))
            chunk, size = [], 0
        i += 1
    return found


def _masked(tokens, vocabulary, flags, rng):
    groups = []
    for place, piece in enumerate(tokens):
        if piece in ("[CLS]", "[SEP]"):
            pass
        elif flags.do_whole_word_mask and groups and piece.startswith("##"):
            groups[-1].append(place)
        else:
            groups.append([place])
    rng.shuffle(groups)
    count = min(flags.max_predictions_per_seq, max(1, int(round(len(tokens) * flags.masked_lm_prob))))
    masked, chosen = list(tokens), []
    for group in groups:
        if len(chosen) < count and len(chosen) + len(group) <= count:
            for place in group:
                if rng.random() < 0.8:
                    masked[place] = "[MASK]"
                elif rng.random() >= 0.5:
                    masked[place] = vocabulary[rng.randint(0, len(vocabulary) - 1)]
                chosen.append(place)
    return masked, [(place, tokens[place]) for place in sorted(chosen)]


def _features(masked, chosen, first, is_random, ids, flags) -> Features:
    def padded(values, length, zero: float = 0):
        return values + [zero] * (length - len(values))

    L, P = flags.max_seq_length, flags.max_predictions_per_seq
    return {
        "input_ids": padded([ids[piece] for piece in masked], L),
        "input_mask": padded([1] * len(masked), L),
        "segment_ids": padded([0] * first + [1] * (len(masked) - first), L),
        "masked_lm_positions": padded([place for place, _ in chosen], P),
        "masked_lm_ids": padded([ids[piece] for _, piece in chosen], P),
        "masked_lm_weights": padded([1.0] * len(chosen), P, 0.0),
        "next_sentence_labels": [int(is_random)],
    }


def read_tfrecord(file: Path) -> list[Features]:
    """The features of each tf.train.Example of an uncompressed file."""
    raw, at, found = file.read_bytes(), 0, []
    while at < len(raw):
        (size,) = struct.unpack_from("<Q", raw, at)
        content = raw[at + 12 : at + 12 + size]
        assert struct.unpack_from("<I", raw, at + 8)[0] == masked_crc(raw[at : at + 8])
        assert struct.unpack_from("<I", raw, at + 12 + size)[0] == masked_crc(content)
        at += size + 16
        ((_, features),) = _message(content)
        example = {}
        for _, entry in _message(features):
            (_, name), (_, feature) = _message(entry)
            ((kind, values),) = _message(feature)
            ((_, packed),) = _message(values)
            numbers = [n for (n,) in struct.iter_unpack("<f", packed)] if kind == 2 else _varints(packed)
            example[name.decode()] = numbers
        found.append(example)
    return found


def masked_crc(content: bytes) -> int:
    """CRC-32C bit by bit (Castagnoli's polynomial, reflected), rotated and moved as TensorFlow does it."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) % 2**32


def _varints(raw: bytes) -> list[int]:
    found, number, shift = [], 0, 0
    for byte in raw:
        number += (byte % 128) << shift
        shift += 7
        if byte < 128:
            found.append(number)
            number = shift = 0
    return found


def _message(raw: bytes) -> list[tuple[int, bytes]]:
    """The fields of a message that holds bytes alone."""
    fields = []
    while raw:
        end = next(n for n in range(1, len(raw)) if raw[n] < 128) + 1
        (size,) = _varints(raw[1:end])
        assert raw[0] % 8 == 2
        fields.append((raw[0] // 8, raw[end : end + size]))
        raw = raw[end + size :]
    return fields
