"""A row of a batch decoded back to text, for people: the first example that a run prints."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from contexture.data.config import Context
from contexture.data.packing import apart
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.elmo_char_ids import words_from_char_ids
from contexture.data.tokenizers.wordpiece import CLS, SEP


def describe(
    batch: Mapping[str, np.ndarray],
    row: int,
    tokenizer: Tokenizer,
    labels: Sequence[str] = (),
    kind: str = "off",
    context: Context = "sentence",
) -> str:
    """Returns a sequence decoded back to text, for people.

        BERT   `[CLS] the {cat→[MASK]} sat [SEP]`: a masked piece as {label→what is read}; a word with its tag,
               `jim/PROPN`, whatever its pieces
        GPT    the text, with ⏎ for a line end; in a task `_start_ the cat _classify_`
        ELMo   a forward lane as it is read, and what is predicted: `<S> the cat → the cat sat`; in a task its words,
               like static vectors

    An example's label follows it, or the answer to a question. Of an example of several sequences the first is shown,
    of a choice (kind) the right one. context: data.context.
    """
    # As if each sequence had a row of its own.
    batch = apart(batch)
    # A batch says by its arrays what it is.
    if "types" in batch and "next" in batch:
        return _lane(batch, row, tokenizer)
    # Words without segments: an ELMo's task, or static vectors.
    if not {"segments", "next"} & set(batch):
        return _words(batch, row, labels, tokenizer, kind)
    several: list[str] = []
    # Several sequences an example, BAL: the alternatives of a choice, or a pair in both orders.
    if batch["tokens"].ndim == 3:
        count, shown = batch["tokens"].shape[1], int(batch["labels"][row]) if kind == "choice" else 0
        count = int(batch["choices"][row].sum()) if kind == "choice" else count
        several = [f"the right one of {count} alternatives" if kind == "choice" else f"the first of {count} sequences"]
        batch = {name: array[:, shown] if array.ndim == 3 else array for name, array in batch.items()}
    tokens = batch["tokens"][row, : int(batch["mask"][row].sum())]
    facts = [f"{len(tokens)} tokens", *several]
    # Windows of pretraining: there is nothing but text and its next tokens.
    if "next" in batch and not {"labels", "targets", "tags", "starts"} & set(batch):
        packed = [f"{batch['packs'][row].max()} documents apart"] if "packs" in batch else []
        counted = int((batch["next_weights"][row] > 0).sum())
        return f"{_shown(tokens, tokenizer)}\n({'; '.join([*facts, *packed, f'{counted} to predict'])})"
    tags = batch["tags"][row, : len(tokens)] if "tags" in batch else np.full(len(tokens), -1)
    if "next" in batch:
        text = _in_words(tokens, tags, tokenizer, labels)
    else:
        text = _in_pieces(batch, row, tokens, tags, tokenizer, labels, context)
        second = int(batch["segments"][row, : len(tokens)].sum())
        facts.append(f"{len(tokens) - second} in segment 0, {second} in segment 1")
    # Which fields the batch has says what it is for.
    if "slots" in batch:
        facts.append(f"{int((batch['slot_weights'][row] > 0).sum())} to predict")
    elif "labels" in batch:
        facts.append(f"label {labels[batch['labels'][row]]}")
    elif "targets" in batch:
        facts.append(f"target {batch['targets'][row]:g}")
    elif "starts" in batch:
        facts.append(_answer(batch, row, tokenizer))
    if "is_random" in batch:
        facts.append("the second span is random" if batch["is_random"][row] else "the second span is the next")
    return f"{text}\n({'; '.join(facts)})"


def _answer(batch: Mapping[str, np.ndarray], row: int, tokenizer: Tokenizer) -> str:
    """Returns the answer in a window, in quotes."""
    start, end = int(batch["starts"][row]), int(batch["ends"][row])
    # Place 0 is never an answer's: the first special token is there, or the question's first word.
    if not end:
        return "no answer in this window"
    if "types" in batch:
        words = words_from_char_ids(batch["types"][batch["index"][row, start : end + 1]])
        return f'answer "{" ".join(words)}"'
    return f'answer "{tokenizer.decode(batch["tokens"][row, start : end + 1].tolist()).strip()}"'


def _words(batch: Mapping[str, np.ndarray], row: int, labels: Sequence[str], tokenizer: Tokenizer, kind: str) -> str:
    """Returns the words of a text, each word with its tag, or a pair's two texts; and the answer."""
    index, mask, several = batch["index" if "types" in batch else "tokens"][row], batch["mask"][row], ""
    if kind == "choice":
        index, mask = (x[int(batch["labels"][row])] for x in (index, mask))
        several = f"; the right one of {int(batch['choices'][row].sum())} alternatives"
    texts = [
        words_from_char_ids(batch["types"][i[m > 0]])
        if "types" in batch
        else [*map(tokenizer.token, i[m > 0].tolist())]
        for i, m in zip(np.atleast_2d(index), np.atleast_2d(mask), strict=True)
    ]
    if "tags" in batch:
        tags = batch["tags"][row][mask > 0].tolist()
        # A word without a tag is context.
        texts = [[f"{word}/{labels[tag]}" if tag >= 0 else word for word, tag in zip(texts[0], tags, strict=True)]]
    answer = f" → {labels[batch['labels'][row]]}" if "labels" in batch else ""
    answer = f" → {batch['targets'][row]:g}" if "targets" in batch else answer
    answer = f" → {_answer(batch, row, tokenizer)}" if "starts" in batch else answer
    return f"{' | '.join(map(' '.join, texts))}{answer}\n({sum(map(len, texts))} words{several})"


def _lane(batch: Mapping[str, np.ndarray], row: int, tokenizer: Tokenizer) -> str:
    """Returns a forward lane's words, and the word that is predicted at each."""
    counted = batch["next_weights"][row] > 0
    read = words_from_char_ids(batch["types"][batch["index"][row][counted]])
    predicted = [tokenizer.token(number) for number in batch["next"][row][counted].tolist()]
    types = int((batch["types"] > 0).any(1).sum())
    facts = f"{len(read)} words forward, as many backward; {types} distinct rows in the batch"
    return f"{' '.join(read)} → {' '.join(predicted)}\n({facts})"


def _in_pieces(
    batch: Mapping[str, np.ndarray],
    row: int,
    tokens: NDArray[np.int32],
    tags: NDArray[np.integer],
    tokenizer: Tokenizer,
    labels: Sequence[str],
    context: Context,
) -> str:
    """Returns a sequence of BERT's, its pieces joined to words."""
    pieces: list[str] = [tokenizer.token(number) for number in tokens.tolist()]
    if "slots" in batch:
        # Unused slots of a sequence weigh 0.
        used = batch["slot_weights"][row] > 0
        slots, originals = batch["slots"][row][used].tolist(), batch["labels"][row][used].tolist()
        # Each masked piece shows its label and what is read in its place.
        for slot, original in zip(slots, originals, strict=True):
            shown = tokenizer.token(original)
            # A piece inside a word stays joined to it: un{wanted→[MASK]}.
            mark = shown.removeprefix("##")
            pieces[slot] = ("##" if mark != shown else "") + f"{{{mark}→{pieces[slot]}}}"
    # A word's tag is at its first piece; the others follow without one, up to the next word or [SEP]. Behind the last
    # word there may be context, whose words have no tag.
    last = int(np.flatnonzero(tags >= 0).max(initial=0)) if context == "document" else len(pieces)
    words: list[str] = []
    ends: list[str] = []
    for place, (piece, tag) in enumerate(zip(pieces, tags.tolist(), strict=True)):
        follows = tag < 0 and ends[-1:] != [""] and place < last
        if words and (piece.startswith("##") or (follows and piece not in (CLS, SEP))):
            words[-1] += piece.removeprefix("##")
        else:
            words.append(piece)
            ends.append(f"/{labels[tag]}" if tag >= 0 else "")
    return " ".join(map(str.__add__, words, ends))


def _in_words(tokens: NDArray[np.int32], tags: NDArray[np.integer], tokenizer: Tokenizer, labels: Sequence[str]) -> str:
    """Returns a sequence of a GPT's task, cut around its special tokens and after each word that has a tag."""
    # Pieces may hold a part of a character, so they are decoded together, up to the next special token or tag.
    special = np.isin(tokens, list(tokenizer.specials.values()))
    ends = special | (tags >= 0)
    # A span ends at a special token, before one, and at a word's tag.
    ends[:-1] |= special[1:]
    parts = []
    for span in np.split(np.arange(len(tokens)), np.flatnonzero(ends)[:-1] + 1):
        text, tag = tokenizer.decode(tokens[span].tolist()).strip(), int(tags[span[-1]])
        parts.append(f"{text}/{labels[tag]}" if tag >= 0 else text)
    return _in_one_line(" ".join(parts))


def _shown(tokens: NDArray[np.int32], tokenizer: Tokenizer) -> str:
    """Returns the text of a window with the ends of its documents, in one line."""
    ends = np.flatnonzero(tokens == tokenizer.end) if tokenizer.end is not None else np.array([], np.int64)
    # Each part but the first begins with the end of a document, which decoding would drop or spell as text.
    first, *others = np.split(tokens, ends)
    text = tokenizer.decode(first.tolist())
    for other in others:
        text += tokenizer.token(int(other[0])) + tokenizer.decode(other[1:].tolist())
    return _in_one_line(text)


def _in_one_line(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "⏎")
