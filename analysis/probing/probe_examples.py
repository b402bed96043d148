"""Targets as arrays: the units of their spans and their labels; and the labels of a control task."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from contexture.analysis.probing.span_features import SpanFeatures
from contexture.analysis.probing.target_types import Sentence
from contexture.data.errors import DataError


@dataclass(frozen=True)
class ProbeExamples:
    """Targets of a task, T of them with S spans each (1 or 2).

    Args:
        spans_TS2: i64, the first unit of each span, and the one behind its last.
        labels_TC: bool, which labels of the training set a target has.
        missed_T: i64, how many further labels a target has that the training set lacks: no probe can predict them.
        words: the words of each target's spans: the word type for which a control task draws a label.
        left_out: how many targets are in sentences that are too long for the model.
        unknown: the labels that the training set lacks, and how many targets have each.
    """

    spans_TS2: np.ndarray
    labels_TC: np.ndarray
    missed_T: np.ndarray
    words: Sequence[tuple[tuple[str, ...], ...]]
    left_out: int
    unknown: Mapping[str, int]


def label_names(sentences: Sequence[Sentence]) -> tuple[str, ...]:
    """Returns the labels of sentences, sorted."""
    return tuple(sorted({label for each in sentences for target in each.targets for label in target.labels}))


def encode_targets(
    sentences: Sequence[Sentence],
    numbers: Mapping[tuple[str, ...], int],
    features: SpanFeatures,
    labels: Sequence[str],
) -> ProbeExamples:
    """Returns the targets of sentences as arrays.

    Args:
        sentences: the sentences with their targets.
        numbers: the number of each sentence within the features, by its words.
        features: where the units of spans are.
        labels: the labels of the training set.

    Raises:
        DataError: when some targets are pairs and some single spans.
    """
    place = {label: n for n, label in enumerate(labels)}
    spans: list[list[tuple[int, int]]] = []
    rows: list[list[int]] = []
    missed: list[int] = []
    words: list[tuple[tuple[str, ...], ...]] = []
    unknown: Counter[str] = Counter()
    left_out = count = 0
    for sentence in sentences:
        number = numbers[sentence.words]
        for target in sentence.targets:
            own = [span for span in (target.span1, target.span2) if span is not None]
            count = count or len(own)
            if len(own) != count:
                raise DataError(
                    f"{sentence.origin}: targets of {len(own)} and of {count} spans in one set; give one kind"
                )
            units = [features.units_of(number, *span) for span in own]
            # None: the sentence is too long for the model.
            present = [each for each in units if each is not None]
            if len(present) < len(own):
                left_out += 1
                continue
            lacking = [label for label in target.labels if label not in place]
            unknown.update(lacking)
            spans.append(present)
            rows.append([place[label] for label in target.labels if label in place])
            missed.append(len(lacking))
            words.append(tuple(sentence.words[first:behind] for first, behind in own))
    labels_TC = np.zeros((len(rows), len(labels)), bool)
    for n, row in enumerate(rows):
        labels_TC[n, row] = True
    spans_TS2 = np.array(spans, np.int64).reshape(len(spans), count, 2)
    return ProbeExamples(spans_TS2, labels_TC, np.array(missed, np.int64), words, left_out, dict(unknown))


def control_task(examples: ProbeExamples, train_TC: np.ndarray, seed: int) -> ProbeExamples:
    """Returns the same targets with labels of a control task (Hewitt and Liang 2019, section 2.1).

    Each word type, or pair of types, has the labels of a training target drawn at random, the same in every sentence
    and every set. A probe can only memorise such labels.

    Args:
        examples: the targets.
        train_TC: the labels of the training targets, from which labels are drawn.
        seed: of the draws.
    """
    drawn = [_draw(words, seed) % len(train_TC) for words in examples.words]
    return replace(examples, labels_TC=train_TC[drawn], missed_T=np.zeros_like(examples.missed_T), unknown={})


def _draw(words: tuple[tuple[str, ...], ...], seed: int) -> int:
    """Returns a number that depends only on the seed and the words of the spans."""
    # Python's own hash of strings differs from process to process.
    text = "\x1e".join("\x1f".join(span) for span in words)
    digest = hashlib.blake2b(f"{seed}\x1d{text}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


@dataclass(frozen=True)
class ProbeBatch:
    """The features of a batch of targets.

    Args:
        units_BSWND: f32, the W units of each span, padded.
        inside_BSW: bool, which units are no padding.
        labels_BC: f32, 1 for the labels of a target.
        weight_B: f32, 0 for a row that only fills up the batch.
        numbers: the targets of the rows with a weight.
    """

    units_BSWND: np.ndarray
    inside_BSW: np.ndarray
    labels_BC: np.ndarray
    weight_B: np.ndarray
    numbers: np.ndarray


def batches(
    examples: ProbeExamples, units_UND: np.ndarray, batch: int, order: np.random.Generator | None = None
) -> Iterator[ProbeBatch]:
    """Yields all targets once; a batch holds targets with spans of about the same length, so that little is padding.

    Args:
        examples: the targets.
        units_UND: the features of all units.
        batch: targets of a batch.
        order: draws which targets share a batch, and the order of the batches; None: in the order given.
    """
    longest_T = np.diff(examples.spans_TS2, axis=-1)[..., 0].max(1, initial=1)
    numbers = np.arange(len(longest_T)) if order is None else order.permutation(len(longest_T))
    # Widths 1, 4, 16, …: each width is a program to compile.
    widths = np.array([4 ** -(-(int(n) - 1).bit_length() // 2) for n in longest_T], np.int64)
    groups = [
        (int(width), own[first : first + batch])
        for width in np.unique(widths)
        for own in [numbers[widths[numbers] == width]]
        for first in range(0, len(own), batch)
    ]
    for n in range(len(groups)) if order is None else order.permutation(len(groups)):
        yield _batch(examples, units_UND, *groups[n], batch)


def _batch(examples: ProbeExamples, units_UND: np.ndarray, width: int, numbers: np.ndarray, batch: int) -> ProbeBatch:
    rows = np.concatenate([numbers, np.repeat(numbers[:1], batch - len(numbers))])
    begins_BS, ends_BS = np.moveaxis(examples.spans_TS2[rows], -1, 0)
    places_BSW = begins_BS[..., None] + np.arange(width)
    inside_BSW = places_BSW < ends_BS[..., None]
    # Padding repeats a span's last unit.
    units_BSWND = units_UND[np.minimum(places_BSW, ends_BS[..., None] - 1)]
    weight_B = (np.arange(batch) < len(numbers)).astype(np.float32)
    return ProbeBatch(units_BSWND, inside_BSW, examples.labels_TC[rows].astype(np.float32), weight_B, numbers)
