"""A row of a batch decoded back to text, for people: the first example that a run prints."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.elmo_char_ids import words_from_char_ids


def describe(
    batch: Mapping[str, np.ndarray], row: int, tokenizer: Tokenizer, labels: Sequence[str] = (), kind: str = "off"
) -> str:
    """A line decoded back to text, for people: `[CLS] the {cat→[MASK]} sat [SEP]`, as {label→what stands there}; a
    word's tag after its first piece, `jim/PROPN`; the line's own label behind it. GPT's lines are shown as their text:
    `_start_ the cat _classify_`; a window with ⏎ where a line ends. A lane is shown as it is read forward, and what is
    predicted: `<S> the cat → the cat sat`. Of an example of several lines the first is shown, of a choice (kind) the
    right one."""
    if "types" in batch:
        return _lane(batch, row, tokenizer) if "next" in batch else _words(batch, row, labels)
    several: list[str] = []
    if batch["tokens"].ndim == 3:
        many, right = batch["tokens"].shape[1], int(batch["labels"][row]) if kind == "choice" else 0
        several = [f"the right one of {many} alternatives" if kind == "choice" else f"the first of {many} lines"]
        batch = {name: array[:, right] if array.ndim == 3 else array for name, array in batch.items()}
    tokens = batch["tokens"][row, : int(batch["mask"][row].sum())]
    facts = [f"{len(tokens)} tokens", *several]
    if "next" in batch and not {"labels", "targets", "tags"} & set(batch):
        packed = [f"{batch['packs'][row].max()} documents apart"] if "packs" in batch else []
        counted = int((batch["next_weights"][row] > 0).sum())
        return f"{_shown(tokens, tokenizer)}\n({'; '.join([*facts, *packed, f'{counted} to predict'])})"
    tags = batch["tags"][row, : len(tokens)] if "tags" in batch else np.full(len(tokens), -1)
    if "next" in batch:
        text = _in_words(tokens, tags, tokenizer, labels)
    else:
        text = _in_pieces(batch, row, tokens, tags, tokenizer, labels)
        second = int(batch["segments"][row, : len(tokens)].sum())
        facts.append(f"{len(tokens) - second} in segment 0, {second} in segment 1")
    if "slots" in batch:
        facts.append(f"{int((batch['slot_weights'][row] > 0).sum())} to guess")
    elif "labels" in batch:
        facts.append(f"label {labels[batch['labels'][row]]}")
    elif "targets" in batch:
        facts.append(f"target {batch['targets'][row]:g}")
    if "is_random" in batch:
        facts.append("the second span is random" if batch["is_random"][row] else "the second span is the next")
    return f"{text}\n({'; '.join(facts)})"


def _words(batch: Mapping[str, np.ndarray], row: int, labels: Sequence[str]) -> str:
    """A line of words, each with its tag, or a pair's two, and the answer."""
    index, mask = batch["index"][row], batch["mask"][row]
    lines = [
        words_from_char_ids(batch["types"][i[m > 0]])
        for i, m in zip(np.atleast_2d(index), np.atleast_2d(mask), strict=True)
    ]
    if "tags" in batch:
        tags = batch["tags"][row][mask > 0].tolist()
        lines = [[f"{word}/{labels[tag]}" for word, tag in zip(lines[0], tags, strict=True)]]
    answer = f" → {labels[batch['labels'][row]]}" if "labels" in batch else ""
    answer = f" → {batch['targets'][row]:g}" if "targets" in batch else answer
    return f"{' | '.join(map(' '.join, lines))}{answer}\n({sum(map(len, lines))} words)"


def _lane(batch: Mapping[str, np.ndarray], row: int, tokenizer: Tokenizer) -> str:
    """A forward lane's words, and what is predicted at each."""
    counted = batch["next_weights"][row] > 0
    read = words_from_char_ids(batch["types"][batch["index"][row][counted]])
    predicted = [tokenizer.token(number) for number in batch["next"][row][counted].tolist()]
    types = int((batch["types"] > 0).any(1).sum())
    facts = f"{len(read)} words forward, as many backward; {types} different rows in the batch"
    return f"{' '.join(read)} → {' '.join(predicted)}\n({facts})"


def _in_pieces(
    batch: Mapping[str, np.ndarray],
    row: int,
    tokens: NDArray[np.int32],
    tags: NDArray[np.integer],
    tokenizer: Tokenizer,
    labels: Sequence[str],
) -> str:
    """A line of BERT's, its pieces joined to words."""
    pieces: list[str] = [tokenizer.token(number) for number in tokens.tolist()]
    if "slots" in batch:
        used = batch["slot_weights"][row] > 0
        slots, guesses = batch["slots"][row][used].tolist(), batch["labels"][row][used].tolist()
        for slot, guess in zip(slots, guesses, strict=True):
            shown = tokenizer.token(guess)
            mark = shown.removeprefix("##")
            pieces[slot] = ("##" if mark != shown else "") + f"{{{mark}→{pieces[slot]}}}"
    pieces = [f"{p}/{labels[tag]}" if tag >= 0 else p for p, tag in zip(pieces, tags.tolist(), strict=True)]
    text = ""
    for piece in pieces:
        text += piece[2:] if piece.startswith("##") and text else " " + piece
    return text.strip()


def _in_words(tokens: NDArray[np.int32], tags: NDArray[np.integer], tokenizer: Tokenizer, labels: Sequence[str]) -> str:
    """A line of GPT's, cut around its special tokens and behind each word that has a tag."""
    special = np.isin(tokens, list(tokenizer.specials.values()))
    ends = special | (tags >= 0)
    ends[:-1] |= special[1:]
    said = []
    for span in np.split(np.arange(len(tokens)), np.flatnonzero(ends)[:-1] + 1):
        text, tag = tokenizer.decode(tokens[span].tolist()).strip(), int(tags[span[-1]])
        said.append(f"{text}/{labels[tag]}" if tag >= 0 else text)
    return _in_one_line(" ".join(said))


def _shown(tokens: NDArray[np.int32], tokenizer: Tokenizer) -> str:
    """The text of a window with the ends of its documents, in one line."""
    ends = np.flatnonzero(tokens == tokenizer.end) if tokenizer.end is not None else np.array([], np.int64)
    first, *others = np.split(tokens, ends)
    text = tokenizer.decode(first.tolist())
    for other in others:
        text += tokenizer.token(int(other[0])) + tokenizer.decode(other[1:].tolist())
    return _in_one_line(text)


def _in_one_line(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "⏎")
