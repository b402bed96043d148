"""How text lies in the arrays of a batch: `[CLS] a [SEP] b [SEP]`, or `[CLS] a [SEP]`, of which b_length is -1."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from data import draws
from data.errors import DataError
from data.shards import I64
from data.streams import Pairs
from data.tokenizer import Tokenizer

Batch = dict[str, np.ndarray]


def cut(pairs: Pairs, numbers: I64, *, length: int, seed: int) -> Pairs:
    """Cuts both spans so that they fit `length` with three special tokens (truncate_seq_pair).

    A token at a time goes from the longer side (from b where they tie), from its front or its end by a fair coin. The
    coins of line n are the bits of numbers keyed (seed, n, side).
    """
    a, b = pairs.a_length, pairs.b_length
    a_kept, b_kept = _kept(a, b, length - 3)
    a_front = _heads(draws.key(draws.CUT_A, seed), numbers, a - a_kept)
    b_front = _heads(draws.key(draws.CUT_B, seed), numbers, b - b_kept)
    return Pairs(pairs.a_start + a_front, a_kept, pairs.b_start + b_front, b_kept, pairs.is_random)


def cut_ends(pairs: Pairs, length: int) -> Pairs:
    """Cuts what does not fit `length` from the ends, a token at a time from the longer side, from b where they tie
    (run_classifier.py, _truncate_seq_pair)."""
    a_kept, b_kept = _kept(pairs.a_length, pairs.b_length, length - 3)
    return Pairs(pairs.a_start, a_kept, pairs.b_start, b_kept, pairs.is_random)


def _kept(a: I64, b: I64, most: int) -> tuple[I64, I64]:
    """How much of each side is left when the longer one gives until both together have at most `most`."""
    over, half = a + b > most, most // 2
    a_kept = np.where(over, np.where(b < half, most - b, np.minimum(a, most - half)), a)
    return a_kept, np.where(over, most - a_kept, b)


def _heads(key: int, numbers: I64, flips: I64) -> I64:
    """How many of the first `flips` coins of each line show heads; coin c is bit c % 64 of its number c // 64."""
    heads = np.zeros(len(flips), np.int64)
    most = int(flips.max(initial=0))
    if not most:
        return heads
    keys = draws.draw(key, numbers)
    for word in range((most + 63) // 64):
        rows = np.flatnonzero(flips > 64 * word)
        bits = draws.draw(keys[rows], np.full(len(rows), word))
        spare = (64 - np.minimum(flips[rows] - 64 * word, 64)).astype(np.uint64)
        heads[rows] += np.bitwise_count(bits << spare)
    return heads


def bert_pair(
    read: Callable[[I64, I64], NDArray[np.integer]], pairs: Pairs, tokenizer: Tokenizer, length: int
) -> Batch:
    """Spans that fit, read by (starts, lengths) → tokens, segments, mask i32 BL, lengths i64 B (special ones counted),
    candidates bool BL.

    `a = 7 8, b = 9`, length 8 → tokens `[CLS] 7 8 [SEP] 9 [SEP] [PAD] [PAD]`, segments `0 0 0 0 1 1 0 0`.
    """
    B = len(pairs.a_start)
    starts = np.stack([pairs.a_start, pairs.b_start], 1).ravel()
    lengths = np.stack([pairs.a_length, np.maximum(pairs.b_length, 0)], 1).ravel()
    place = np.arange(length)
    a_end = (1 + pairs.a_length)[:, None]
    end = a_end + 1 + pairs.b_length[:, None]
    text_BL = (place > 0) & (place != a_end) & (place < end)
    tokens_BL = np.full((B, length), tokenizer.pad, np.int32)
    tokens_BL[text_BL] = read(starts, lengths)
    _place_specials(tokens_BL, a_end[:, 0], end[:, 0], tokenizer)
    segments_BL = ((place > a_end) & (place <= end)).astype(np.int32)
    mask_BL = (place <= end).astype(np.int32)
    batch = {"tokens": tokens_BL, "segments": segments_BL, "mask": mask_BL}
    return {**batch, "lengths": end[:, 0] + 1, "candidates": text_BL}


def _place_specials(tokens_BL: NDArray[np.int32], a_end: I64, end: I64, tokenizer: Tokenizer) -> None:
    rows = np.arange(len(tokens_BL))
    tokens_BL[:, 0] = tokenizer.cls
    tokens_BL[rows, a_end] = tokenizer.sep
    tokens_BL[rows, end] = tokenizer.sep


def bert_texts(tokenizer: Tokenizer, texts: Sequence[str | tuple[str, str]], length: int) -> Batch:
    """Texts or pairs of texts → tokens, segments, mask i32 BL. What is too long loses its end (of a pair, the longer).

    Raises: DataError where `length` has no room for the special tokens and a token of each text.
    """
    if length < 5:
        raise DataError(f"length={length} has no room for a pair of texts and its special tokens; give at least 5")
    firsts = tokenizer.encode([text if isinstance(text, str) else text[0] for text in texts])
    seconds = iter(tokenizer.encode([text[1] for text in texts if not isinstance(text, str)]))
    lines = [(a, None if isinstance(text, str) else next(seconds)) for text, a in zip(texts, firsts, strict=True)]
    ids = np.fromiter(chain.from_iterable(a + (b or []) for a, b in lines), np.int32)
    a_length = np.array([len(a) for a, _ in lines], np.int64)
    b_length = np.array([-1 if b is None else len(b) for _, b in lines], np.int64)
    ends = np.cumsum(a_length + np.maximum(b_length, 0))
    b_start = ends - np.maximum(b_length, 0)
    pairs = Pairs(b_start - a_length, a_length, b_start, b_length, np.zeros(len(lines), bool))

    def read(starts: I64, lengths: I64) -> NDArray[np.int32]:
        return np.concatenate([ids[:0], *(ids[s : s + n] for s, n in zip(starts, lengths, strict=True))])

    batch = bert_pair(read, cut_ends(pairs, length), tokenizer, length)
    return {name: batch[name] for name in ("tokens", "segments", "mask")}


def describe(batch: Mapping[str, np.ndarray], row: int, tokenizer: Tokenizer, labels: Sequence[str] = ()) -> str:
    """A line decoded back to text, for people: `[CLS] the {cat→[MASK]} sat [SEP]`, as {label→what stands there}; a
    word's tag after its first piece, `jim/PROPN`; the line's own label behind it."""
    length = int(batch["mask"][row].sum())
    pieces: list[str] = [tokenizer.token(number) for number in batch["tokens"][row, :length].tolist()]
    counted = 0
    if "slots" in batch:
        used = batch["slot_weights"][row] > 0
        slots, guesses = batch["slots"][row][used].tolist(), batch["labels"][row][used].tolist()
        for slot, guess in zip(slots, guesses, strict=True):
            shown = tokenizer.token(guess)
            mark = shown.removeprefix("##")
            pieces[slot] = ("##" if mark != shown else "") + f"{{{mark}→{pieces[slot]}}}"
            counted += 1
    if "tags" in batch:
        marks = batch["tags"][row, :length].tolist()
        pieces = [f"{p}/{labels[tag]}" if tag >= 0 else p for p, tag in zip(pieces, marks, strict=True)]
    text = ""
    for piece in pieces:
        text += piece[2:] if piece.startswith("##") and text else " " + piece
    second = int(batch["segments"][row, :length].sum())
    facts = [f"{length} tokens", f"{length - second} in segment 0, {second} in segment 1"]
    if "slots" in batch:
        facts.append(f"{counted} to guess")
    elif "labels" in batch:
        facts.append(f"label {labels[batch['labels'][row]]}")
    elif "targets" in batch:
        facts.append(f"target {batch['targets'][row]:g}")
    if "is_random" in batch:
        facts.append("the second span is random" if batch["is_random"][row] else "the second span is the next")
    return f"{text.strip()}\n({'; '.join(facts)})"
