"""How text is laid out in the arrays of a batch.

BERT   `[CLS] a [SEP] b [SEP]`                 or, with b_length -1, `[CLS] a [SEP]`
GPT-1  `[start] a [delimiter] b [extract]`     or `[start] a [extract]`
ELMo   words, as rows of a table with the characters of each distinct word
A family of static vectors has only the words' numbers.
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from contexture.data import rng
from contexture.data.binary_files import I64
from contexture.data.bucketing import bucket
from contexture.data.errors import DataError
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.elmo_char_ids import BEGIN, END, FIRST_WORD, char_ids, word_table
from contexture.data.tokenizers.word_level import Words
from contexture.data.tokenizers.wordpiece import WordPiece, wordpiece

Batch = dict[str, np.ndarray]
Marks = tuple[int, int, int]
"""The special tokens of a pair of texts: before the first, between the two, at the end."""
Read = Callable[[I64, I64], NDArray[np.integer]]
"""Spans of tokens, joined: starts i64 [n], lengths i64 [n] → ids [sum of lengths]."""
GPT_SPECIALS = ("_start_", "_delimiter_", "_classify_")
"""The tokens that GPT-1 learns in fine-tuning: before a text, between two, and the one its answer is read from."""


@dataclass(frozen=True)
class SpanPairs:
    """Sequences of two spans of the row of all tokens, each field [n]. b_length: -1 for no second span."""

    a_start: I64
    a_length: I64
    b_start: I64
    b_length: I64
    is_random: NDArray[np.bool_]
    """The second span comes from elsewhere."""


def truncate_randomly(pairs: SpanPairs, numbers: I64, *, length: int, seed: int) -> SpanPairs:
    """Cuts both spans so that they fit `length` with three special tokens (truncate_seq_pair).

    A token at a time goes from the longer side (from b where they tie), from its front or its end by a fair coin. The
    coins of sequence n are the bits of numbers keyed (seed, n, side).
    """
    # How many tokens go from each side follows from the lengths; only how many of them from the front is chance. So the
    # coins that show heads are counted, and no token is looked at.
    a, b = pairs.a_length, pairs.b_length
    # Three special tokens go around a pair, in BERT's layout and in GPT-1's.
    a_kept, b_kept = kept_tokens(a, b, length - 3)
    a_front = _heads(rng.key(rng.CUT_A, seed), numbers, a - a_kept)
    b_front = _heads(rng.key(rng.CUT_B, seed), numbers, b - b_kept)
    return SpanPairs(pairs.a_start + a_front, a_kept, pairs.b_start + b_front, b_kept, pairs.is_random)


def truncate_longest_first(pairs: SpanPairs, length: int) -> SpanPairs:
    """Cuts what does not fit `length` from the ends, a token at a time from the longer side, from b where they tie
    (run_classifier.py, _truncate_seq_pair).

    Differs: finetune-transformer-lm cuts each text of a pair to n_ctx/2 - 2 tokens, however short the other is.
    """
    a_kept, b_kept = kept_tokens(pairs.a_length, pairs.b_length, length - 3)
    return SpanPairs(pairs.a_start, a_kept, pairs.b_start, b_kept, pairs.is_random)


def kept_tokens(a: I64, b: I64, room: int) -> tuple[I64, I64]:
    """Returns how much of each side is left when the longer one gives until both together have at most `room`."""
    over, half = a + b > room, room // 2
    # A side below the half is kept whole. Else both are cut to halves, b to the smaller one, since b gives on a tie.
    a_kept = np.where(over, np.where(b < half, room - b, np.minimum(a, room - half)), a)
    return a_kept, np.where(over, room - a_kept, b)


def _heads(key: int, numbers: I64, flips: I64) -> I64:
    """Returns how many of the first `flips` coins of each sequence show heads; coin c is bit c % 64 of its number
    c // 64."""
    heads = np.zeros(len(flips), np.int64)
    limit = int(flips.max(initial=0))
    if not limit:
        return heads
    # A key for each sequence, so that its coins are the same in any batch.
    keys = rng.random_bits(key, numbers)
    # A sequence's number holds 64 coins; the longest cuts take several numbers.
    for word in range((limit + 63) // 64):
        rows = np.flatnonzero(flips > 64 * word)
        bits = rng.random_bits(keys[rows], np.full(len(rows), word))
        # Coins beyond the last flip are shifted out.
        spare = (64 - np.minimum(flips[rows] - 64 * word, 64)).astype(np.uint64)
        heads[rows] += np.bitwise_count(bits << spare)
    return heads


def both_orders(pairs: SpanPairs) -> SpanPairs:
    """Returns each pair twice, a-b followed by b-a (GPT-1's similarity)."""
    starts = np.stack([pairs.a_start, pairs.b_start], 1)
    lengths = np.stack([pairs.a_length, pairs.b_length], 1)
    # Both orders of a pair follow each other: heads join consecutive rows to one example.
    a, b = (starts.ravel(), lengths.ravel()), (starts[:, ::-1].ravel(), lengths[:, ::-1].ravel())
    return SpanPairs(*a, *b, np.repeat(pairs.is_random, 2))


def lay_out(
    read: Read, pairs: SpanPairs, marks: Marks, pad: int, length: int, fields: Container[str]
) -> tuple[Batch, NDArray[np.bool_], I64]:
    """Lays out spans that fit, with special tokens around them.

    BERT   `a = 7 8, b = 9`, length 8 → tokens `[CLS] 7 8 [SEP] 9 [SEP] [PAD] [PAD]`, segments `0 0 0 0 1 1 0 0`
    GPT-1  the same → tokens `[start] 7 8 [delimiter] 9 [extract] 0 0`, next `7 8 [delimiter] 9 [extract] 0 0 0`,
           next_weights 1/5 at the first five: a sequence's weights sum to 1, since the original takes the mean within
           each sequence, then over the sequences

    Args:
        read: reads spans of tokens.
        pairs: the spans.
        marks: the special tokens.
        pad: the id of padding.
        length: L.
        fields: the batch's, which say whether there are segments, and next tokens.

    Returns:
        (tokens, mask, segments, next i32 BL, next_weights f32 BL; which tokens are text bool BL; the tokens of each
        sequence, special ones counted, i64 B).
    """
    # Texts a and b of all sequences are read as one row, in the order in which the places of text are then filled.
    starts = np.stack([pairs.a_start, pairs.b_start], 1).ravel()
    lengths = np.stack([pairs.a_length, np.maximum(pairs.b_length, 0)], 1).ravel()
    rows, place = np.arange(len(pairs.a_start)), np.arange(length)
    # Without a second text, b_length = -1 makes both marks fall on one place, and the later one overwrites.
    a_end = 1 + pairs.a_length
    end = a_end + 1 + pairs.b_length
    last = end[:, None]
    # All places up to the last mark, except the marks' own.
    text_BL = (place > 0) & (place != a_end[:, None]) & (place < last)
    tokens_BL = np.full((len(rows), length), pad, np.int32)
    tokens_BL[text_BL] = read(starts, lengths)
    tokens_BL[:, 0], tokens_BL[rows, a_end], tokens_BL[rows, end] = marks
    batch: Batch = {"tokens": tokens_BL}
    if "segments" in fields:
        # Segment 1 is b and its [SEP].
        batch["segments"] = ((place > a_end[:, None]) & (place <= last)).astype(np.int32)
    batch["mask"] = (place <= last).astype(np.int32)
    if "next" in fields:
        # Everything but the last token has a next one: special tokens are predicted too, as in the original.
        target_BL = place < last
        batch["next"] = np.zeros_like(tokens_BL)
        batch["next"][:, :-1] = np.where(target_BL[:, :-1], tokens_BL[:, 1:], 0)
        batch["next_weights"] = np.where(target_BL, 1.0 / last, 0.0).astype(np.float32)
    return batch, text_BL, end + 1


def bert_marks(tokenizer: Tokenizer) -> Marks:
    """Returns the ids of [CLS], [SEP] and [SEP]. Raises: DataError for another kind of vocabulary."""
    pieces = wordpiece(tokenizer)
    return pieces.cls, pieces.sep, pieces.sep


def gpt_specials(tokenizer: Tokenizer) -> Marks:
    """Returns the ids of GPT_SPECIALS. Raises: DataError where the vocabulary lacks one."""
    if missing := [name for name in GPT_SPECIALS if name not in tokenizer.specials]:
        raise DataError(
            f"a GPT's task wants a vocabulary with {', '.join(GPT_SPECIALS)} behind it, and this one, of kind "
            f"{tokenizer.kind}, lacks {', '.join(missing)}; fine-tune a pretrained GPT"
        )
    start, delimiter, extract = (tokenizer.specials[name] for name in GPT_SPECIALS)
    return start, delimiter, extract


def bert_texts(tokenizer: Tokenizer, texts: Sequence[str | tuple[str, str]], length: int) -> Batch:
    """Texts or pairs of texts → tokens, segments, mask i32 BL. Too long a text loses its end, in a pair the longer one.

    Raises: DataError where `length` has no room for the special tokens and a token of each text.
    """
    # [CLS] a [SEP] b [SEP], with a token of each text.
    if length < 5:
        raise DataError(f"length={length} has no room for a pair of texts and its special tokens; give at least 5")
    # First texts and second ones are encoded in two calls, and paired again after that.
    firsts = tokenizer.encode([text if isinstance(text, str) else text[0] for text in texts])
    seconds = iter(tokenizer.encode([text[1] for text in texts if not isinstance(text, str)]))
    encoded = [(a, None if isinstance(text, str) else next(seconds)) for text, a in zip(texts, firsts, strict=True)]
    # All texts as one row of ids, the two of a pair side by side, in which the spans below lie.
    ids = np.fromiter(chain.from_iterable(a + (b or []) for a, b in encoded), np.int32)
    a_length = np.array([len(a) for a, _ in encoded], np.int64)
    b_length = np.array([-1 if b is None else len(b) for _, b in encoded], np.int64)
    ends = np.cumsum(a_length + np.maximum(b_length, 0))
    b_start = ends - np.maximum(b_length, 0)
    pairs = SpanPairs(b_start - a_length, a_length, b_start, b_length, np.zeros(len(encoded), bool))

    def read(starts: I64, lengths: I64) -> NDArray[np.int32]:
        # With `ids[:0]` an empty batch keeps its dtype.
        return np.concatenate([ids[:0], *(ids[s : s + n] for s, n in zip(starts, lengths, strict=True))])

    fit = truncate_longest_first(pairs, length)
    return lay_out(read, fit, bert_marks(tokenizer), tokenizer.pad, length, {"segments"})[0]


def elmo_words(
    read: Read,
    starts: I64,
    lengths: I64,
    char_ids: NDArray[np.uint16],
    length: int,
    rows: int,
    sequences: int | None = None,
) -> Batch:
    """Spans of words → types i32 RW, index i32 BL, mask i32 BL. `types` are the characters of each distinct word, after
    three rows for nothing, begin and end.

    Args:
        read: reads spans of words.
        starts: where each span begins.
        lengths: the words of each span; those from `length` on are left out.
        char_ids: the characters of every word, by its number.
        length: L.
        rows: R, which is doubled until all distinct words have room.
        sequences: as in `word_lines`.
    """
    batch = word_lines(read, starts, lengths, length, sequences)
    # Numbers of words still; below they become rows of the batch's own table.
    index_BL, inside_BL = batch["tokens"], batch["mask"] > 0
    # Each distinct word goes through the character CNN once, however often it occurs in the batch.
    distinct, place = np.unique(index_BL[inside_BL], return_inverse=True)
    index_BL[inside_BL] = place + FIRST_WORD
    # Rows 0 to 2 of the table are no words of the text.
    return {"types": word_table(char_ids[distinct], rows), "index": index_BL, "mask": batch["mask"]}


def word_lines(read: Read, starts: I64, lengths: I64, length: int, sequences: int | None = None) -> Batch:
    """Spans of words → tokens i32 BL, mask i32 BL.

    Args:
        read: reads spans of words.
        starts: where each span begins.
        lengths: the words of each span; those from `length` on are left out.
        length: L.
        sequences: B, where each sequence holds several spans, one after the other; they must fit `length` together.
            None: a sequence for each span.
    """
    # Cut first: the kept lengths of a sequence's spans say how much of its row is filled.
    lengths = np.minimum(lengths, length)
    totals = lengths.reshape(sequences or len(lengths), -1).sum(1)
    inside_BL = np.arange(length) < totals[:, None]
    tokens_BL = np.zeros(inside_BL.shape, np.int32)
    tokens_BL[inside_BL] = read(starts, lengths)
    return {"tokens": tokens_BL, "mask": inside_BL.astype(np.int32)}


def between_ends(index_BL: NDArray[np.int32], mask_BL: NDArray[np.int32]) -> NDArray[np.int32]:
    """Puts each sentence's words between its begin and its end: B(L+2)."""
    index = np.pad(index_BL, ((0, 0), (1, 1)))
    index[:, 0] = BEGIN
    index[np.arange(len(index)), mask_BL.sum(1) + 1] = END
    return index


def elmo_lines(lines: Sequence[Sequence[str]], rows: int = 0, length: int = 0) -> Batch:
    """Lines of words → types i32 RW, index i32 BL, mask i32 BL; B is `rows` where there are fewer lines, L is `length`.

    R is the smallest power of two, from 64 on, that holds the distinct words, and L is their bucket unless it is given:
    few shapes are compiled.
    """
    distinct = sorted({word for words in lines for word in words})
    place = {word: number for number, word in enumerate(distinct, FIRST_WORD)}
    index = np.zeros((max(rows, len(lines)), length or bucket(max(map(len, lines), default=0))), np.int32)
    # Zeros are no word: rows beyond the lines and places beyond a line are padding.
    mask = np.zeros_like(index)
    for row, words in enumerate(lines):
        index[row, : len(words)] = [place[word] for word in words]
        mask[row, : len(words)] = 1
    return {"types": word_table(char_ids(distinct), 64), "index": index, "mask": mask}


def text_batch(tokenizer: Tokenizer, texts: Sequence[str], length: int | None = None) -> Batch:
    """Texts → the fields that the backbone of the tokenizer's family reads, in as few places as they need.

    length: the most tokens of a text (None: as many as it has); a longer one loses its end.
    """
    if isinstance(tokenizer, Words):
        return elmo_lines([tokenizer.words(text)[:length] for text in texts])
    if isinstance(tokenizer, WordPiece):
        # [CLS] and [SEP] around a lone text; bert_texts takes a length of 5 at least.
        longest = max(map(len, tokenizer.encode(texts)), default=0) + 2
        return bert_texts(tokenizer, texts, max(min(longest, length or longest), 5))
    lines = [ids[:length] for ids in tokenizer.encode(texts)]
    return token_lines(lines, len(lines), tokenizer.pad, max(map(len, lines), default=0))


def token_lines(lines: Sequence[Sequence[int]], rows: int, pad: int, limit: int, length: int = 0) -> Batch:
    """Lines of ids → tokens, segments, mask i32 BL; B is `rows` where there are fewer lines. L is `length`, or without
    one their bucket, at most `limit`."""
    # A bucket, so that texts of many lengths are compiled for few.
    length = length or bucket(max(map(len, lines), default=0), limit)
    tokens = np.full((max(rows, len(lines)), length), pad, np.int32)
    mask = np.zeros_like(tokens)
    for row, ids in enumerate(lines):
        tokens[row, : len(ids)] = ids
        mask[row, : len(ids)] = 1
    return {"tokens": tokens, "segments": np.zeros_like(tokens), "mask": mask}
