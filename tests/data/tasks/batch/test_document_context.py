"""A sentence to tag in the middle of its document: laid out as the slow road lays it out, tagged as alone."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.data import bucketing
from contexture.data.config import DataConfig, Family, TaskConfig
from contexture.data.describe import describe
from contexture.data.errors import DataError
from contexture.data.packing import apart
from contexture.data.tasks.batch.batches import HeldOutTask
from contexture.data.tasks.batch.document_context import chunks_in_documents
from contexture.data.tasks.batch.training_batches import TaskBatches
from contexture.data.tasks.encode import encode_examples
from contexture.data.tasks.encode.encode_examples import encode
from contexture.data.tasks.encode.example_tokens import encode_chunk, in_memory, reader, with_context
from contexture.data.tasks.read.examples import Tagged
from contexture.data.tasks.read.labels import Labels
from contexture.data.tasks.read.read_examples import check_examples, examples
from contexture.data.tasks.store.example_store import ExampleSplit, ExampleStore
from contexture.data.tokenizers.base import Tokenizer, with_added_tokens
from contexture.data.tokenizers.char_level import Characters
from contexture.data.tokenizers.elmo_char_ids import words_from_char_ids
from contexture.data.tokenizers.open_vocabulary import OpenVocabulary
from contexture.data.tokenizers.word_level import Words
from contexture.data.tokenizers.wordpiece import WordPiece
from tests.helpers.packed import STORED
from tests.helpers.slow_pairs import vocabulary

PIECES = WordPiece([*vocabulary(), *"abcdefgh", *(f"##{letter}" for letter in "abcdefgh")], lowercase=True)
LETTERS = with_added_tokens(Characters(list("abcdefgh ")), ["_start_", "_delimiter_", "_classify_"])
WORDS = Words(["<S>", "</S>", "<UNK>", "the"], "spaces")
TOKENIZERS: dict[Family, Tokenizer] = {"bert": PIECES, "gpt": LETTERS, "elmo": WORDS}
TAGS = ("O", "X", "Y")
Document = list[list[str]]
Line = tuple[list[str], list[tuple[int, int]]]
"""The pieces of a sequence, and (place, tag) of those that have one."""

WORD = st.text("abcdefgh", min_size=1, max_size=5)
DOCUMENTS = st.lists(st.lists(st.lists(WORD, min_size=1, max_size=6), min_size=1, max_size=6), min_size=1, max_size=4)
FAMILIES = st.sampled_from(["bert", "gpt", "elmo"])


def _tag(word: str) -> str:
    return TAGS[len(word) % 3]


def _conll(documents: Sequence[Document], first: bool = True) -> str:
    """first: whether the first document begins with a border too."""
    parts = []
    for number, document in enumerate(documents):
        parts += ["-DOCSTART- O\n"] if number or first else []
        parts += ["".join(f"{word} {_tag(word)}\n" for word in sentence) for sentence in document]
    return "\n".join(parts)


def _conllu(documents: Sequence[Document]) -> str:
    parts = []
    for number, document in enumerate(documents):
        for place, sentence in enumerate(document):
            begin = f"# newdoc id = {number}\n# newpar\n" if not place else ""
            lines = [f"{n}\t{word}\t_\t{_tag(word)}" + "\t_" * 6 for n, word in enumerate(sentence, 1)]
            parts.append(begin + "# text = x\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def _sentences(documents: Sequence[Document]) -> list[Tagged]:
    every = [(number, place, s) for number, document in enumerate(documents) for place, s in enumerate(document)]
    return [
        Tagged((*s,), (*map(_tag, s),), f"f:{n}", number, place > 0) for n, (number, place, s) in enumerate(every, 1)
    ]


def _split(sentences: Sequence[Tagged], family: Family, context: str = "document") -> ExampleSplit:
    tokenizer = reader(TOKENIZERS[family])
    encoded = encode_chunk(sentences, "tag", tokenizer, Labels(TAGS), context=context)  # type: ignore[arg-type]
    char_ids = tokenizer.char_ids() if isinstance(tokenizer, OpenVocabulary) else None
    return in_memory(encoded, "tag", TAGS, "f", char_ids=char_ids)


def _config(length: int, batch: int = 4, context: str = "document") -> DataConfig:
    return DataConfig(batch=batch, length=length, max_predictions=1, context=context)  # type: ignore[arg-type]


def _held_out(split: ExampleSplit, family: Family, length: int, batch: int = 4) -> HeldOutTask:
    return HeldOutTask(split, TOKENIZERS[family], _config(length, batch), batch, family=family)


def _shown(held_out: HeldOutTask) -> dict[int, Line]:
    """The line of each example, by its number."""
    seen = {}
    for step in range(held_out.steps):
        batch = apart(held_out.read(step))
        for row, number in enumerate(held_out.numbers(step).tolist()):
            seen[number] = _line(batch, row, held_out.text.name)
    return seen


def _line(batch: dict[str, np.ndarray], row: int, family: Family) -> Line:
    mask, tags = batch["mask"][row] > 0, batch["tags"][row]
    if family == "elmo":
        pieces = words_from_char_ids(batch["types"][batch["index"][row][mask]])
    else:
        pieces = [TOKENIZERS[family].token(n) for n in batch["tokens"][row][mask].tolist()]
    weights = batch["tag_weights"][row]
    assert ((weights > 0) == (tags >= 0)).all()
    return list(pieces), [(place, int(tags[place])) for place in np.flatnonzero(tags >= 0).tolist()]


# The slow road: lists of words and their pieces, one word at a time


Word = tuple[str, list[str]]
"""A word and its pieces."""


def _pieces(family: Family, document: Document) -> list[list[Word]]:
    """Each word of a document but the first one has a space before it, where spaces are pieces."""
    words = []
    for number, sentence in enumerate(document):
        words.append([])
        for place, word in enumerate(sentence):
            space = [" "] if number or place else []
            pieces = {"elmo": [word], "gpt": [*space, *word], "bert": [word[0], *(f"##{x}" for x in word[1:])]}[family]
            words[-1].append((word, pieces))
    return words


def _size(words: list[Word]) -> int:
    return sum(len(pieces) for _, pieces in words)


def _fit(words: list[Word], room: int) -> list[Word]:
    """The first words that have room together."""
    return next(words[:count] for count in range(len(words), -1, -1) if _size(words[:count]) <= max(room, 0))


def slow_layout(document: Document, place: int, family: Family, length: int) -> Line:
    sentences = _pieces(family, document)
    own = sentences[place]
    before = [word for sentence in sentences[:place] for word in sentence][::-1]  # the nearest first
    after = [word for sentence in sentences[place + 1 :] for word in sentence]
    spare = max(length - 2 - _size(own), 0)
    left = _fit(before, max(spare // 2, spare - _size(after)))
    right = _fit(after, spare - _size(left))
    left = _fit(before, spare - _size(right))
    first, last = {"bert": (["[CLS]"], ["[SEP]"]), "gpt": (["_start_"], ["_classify_"]), "elmo": ([], [])}[family]
    tokens = [*first, *(piece for _, pieces in left[::-1] for piece in pieces)]
    tagged = []
    limit = len(first) + length - 2  # a sentence that is too long loses its end
    for word, pieces in own:
        tagged.append((len(tokens) + (len(pieces) - 1 if family == "gpt" else 0), TAGS.index(_tag(word))))
        tokens += pieces
    tokens = [*tokens[:limit], *(piece for _, pieces in right for piece in pieces), *last]
    return tokens, [(at, tag) for at, tag in tagged if at < limit]


@settings(max_examples=150, deadline=None)
@given(DOCUMENTS, FAMILIES, st.integers(8, 40), st.integers(1, 5))
def test_a_layout_is_that_of_the_slow_road(documents, family, length, batch):
    seen = _shown(_held_out(_split(_sentences(documents), family), family, length, batch))
    expected = [
        slow_layout(document, place, family, length) for document in documents for place in range(len(document))
    ]
    assert [seen[number] for number in range(len(expected))] == expected


@settings(max_examples=50, deadline=None)
@given(DOCUMENTS, FAMILIES, st.integers(8, 40))
def test_the_words_that_are_tagged_are_those_of_a_sentence_alone(documents, family, length):
    """Where spaces are pieces, a sentence that follows another has one more."""
    within = _shown(_held_out(_split(_sentences(documents), family), family, length))
    alone = _shown(_held_out(_split(_sentences(documents), family, "sentence"), family, length))
    for number, (pieces, tagged) in within.items():
        others = alone[number][0]
        if family == "gpt" and len(others) == length:
            continue
        assert [(pieces[at], tag) for at, tag in tagged] == [(others[at], tag) for at, tag in alone[number][1]]


@pytest.mark.parametrize("family", ["bert", "gpt", "elmo"])
def test_a_document_of_one_sentence_gives_the_same_batch_as_without(family: Family):
    sentences = _sentences([[["ab", "c"]], [["d"] * 30], [["e", "fgh", "a"]]])
    one = _held_out(_split(sentences, family), family, 16).read(0)
    other = _held_out(_split(sentences, family, "sentence"), family, 16).read(0)
    assert one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("family", ["bert", "gpt", "elmo"])
def test_some_rows_of_a_batch_are_those_of_the_whole(family: Family):
    held_out = _held_out(_split(_sentences([[["ab", "c"], ["d"], ["e", "fgh"]], [["a"]]]), family), family, 16)
    whole, part = held_out.read(0), held_out.read(0, np.array([2, 0]))
    for name, x in whole.items():
        # Rows that sequences share are read whole, and so is the table of words.
        own = held_out.fields[name].split()[1].startswith("B")
        assert own != (name in ("types", "index", "tokens", "segments", "next", "next_weights", "packs", "positions"))
        assert np.array_equal(part[name], x[[2, 0]] if own else x), name


def test_both_sides_are_balanced_and_give_what_they_leave(tmp_path):
    """By hand: 10 places for words, an own word, ten words before it and as many behind it."""
    words = [*"abcdefgh"]
    document = [[*words, "a", "b"], ["cc"], [*words[::-1], "b", "a"]]
    row = _shown(_held_out(_split(_sentences([document]), "bert"), "bert", 12))
    assert row[1] == ("[CLS] g h a b c ##c h g f e [SEP]".split(), [(5, 2)])
    assert row[0][0] == "[CLS] a b c d e f g h a b [SEP]".split()  # the sentence takes all
    document = [["a"], ["cc"], [*words]]
    assert _shown(_held_out(_split(_sentences([document]), "bert"), "bert", 12))[1][0] == (
        "[CLS] a c ##c a b c d e f g [SEP]".split()
    )


def _long_store(folder: Path, family: Family) -> tuple[list[Document], ExampleStore, TaskBatches]:
    """60 documents of 1 to 40 sentences, few of them long."""
    rng = np.random.default_rng(3)
    documents = [[["a"] * int(n) for n in rng.integers(1, 5, int(40 * x**3 + 1))] for x in rng.random(60)]
    (folder / "a.conll").write_text(_conll(documents), "utf-8")
    task = TaskConfig(kind="tag", train=(str(folder / "a.conll"),), labels=TAGS)
    store = encode(task, TOKENIZERS[family], folder / "data", context="document")
    return documents, store, TaskBatches(store, TOKENIZERS[family], _config(64), task, seed=1, family=family)


@pytest.mark.parametrize(("family", "ends"), [("bert", 0), ("elmo", 2)])
def test_rows_hold_sentences_with_all_of_their_context(tmp_path, monkeypatch, family: Family, ends: int):
    """ends: places of a sentence that no line has, begin and end of an ELMo's."""
    documents, store, batches = _long_store(tmp_path, family)
    expected = [slow_layout(document, n, family, 64) for document in documents for n in range(len(document))]
    lengths = {len(line) + ends for line, _ in expected}
    assert len(lengths) > 10 and max(lengths) == 64 and batches.length == 64
    seen, first = [], len(expected) // 4
    for step in range(first):
        batch = batches.read(step)
        assert batch["packs"].shape[0] in batches.rows.heights(4) and batch["packs"].shape[1] == batches.rows.width
        # No token of one sentence lies where another's does: there are as many as all have together.
        assert (batch["packs"] > 0).sum() == batch["mask"].sum() + 4 * ends
        alone = apart(batch)
        lines = [_line(alone, row, family) for row in range(4)]
        assert batch["mask"].sum(1).tolist() == [len(line) for line, _ in lines]
        seen += lines
        part = apart(batches.read(step, np.array([3, 1])))
        assert all(np.array_equal(part[name], x if name == "types" else x[[3, 1]]) for name, x in alone.items())
    # An epoch has each once; what is left over of whole batches belongs to the next one.
    left = Counter(map(str, expected)) - Counter(map(str, seen))
    assert left.total() == len(expected) - 4 * first and not Counter(map(str, seen)) - Counter(map(str, expected))
    held_out = _held_out(store.splits["train"], family, 64)
    assert _shown(held_out) == dict(enumerate(expected))
    assert {len(held_out.read(step)["packs"]) for step in range(held_out.steps)} <= {*held_out.shape.heights}
    # What a frozen backbone computes of a sentence is as long as its context.
    monkeypatch.setattr(bucketing, "MIN_SAVING", 0.05)
    stored = batches.with_features(STORED, {})
    assert len(stored.lengths) > 1 and stored.lengths[-1] == 64
    for step in range(first):
        longest = int(batches.read(step)["mask"].sum(1).max()) + ends
        assert stored.length_at(step) == min(n for n in stored.lengths if n >= longest)
        assert np.array_equal(stored.read(step)["mask"].sum(1), batches.read(step)["mask"].sum(1))
    # What is cut is counted by the sentences alone.
    assert store.splits["train"].longer_than(64) == 0 and "cut" not in batches.describe()


# Files


def _read(path: Path, content: str) -> list[tuple[tuple[str, ...], int | None]]:
    path.write_text(content, "utf-8")
    rows = examples(str(path), TaskConfig(kind="tag"), labelled=True)
    return [(row.words, row.document) for row in rows if isinstance(row, Tagged)]


def test_documents_of_conll_begin_with_docstart(tmp_path):
    expected = [(("a",), 1), (("b", "c"), 1), (("d",), 2)]
    content = "-DOCSTART- -X- O\n\na N O\n\n\nb N O\nc N O\n\n-DOCSTART- -X- O\n\nd N O\n"
    assert _read(tmp_path / "a.conll", content) == expected
    # A border ends a sentence too, and one without a document behind it is none.
    assert _read(tmp_path / "a.conll", "a O\n-DOCSTART- O\nb O\n-DOCSTART- O\n-DOCSTART- O\n\n") == [
        (("a",), 0),
        (("b",), 1),
    ]
    assert _read(tmp_path / "a.conll", "a O\n\nb O\n") == [(("a",), 0), (("b",), 0)]


def test_documents_of_conllu_begin_with_a_comment(tmp_path):
    documents = [[["a"], ["b", "c"]], [["d"]]]
    rows = _read(tmp_path / "a.conllu", _conllu(documents))
    assert [words for words, _ in rows] == [("a",), ("b", "c"), ("d",)]
    assert [document == rows[0][1] for _, document in rows] == [True, True, False]
    plain = _conllu(documents).replace("# newdoc", "# newdocument")
    assert len({document for _, document in _read(tmp_path / "a.conllu", plain)}) == 1


@settings(max_examples=25, deadline=None)
@given(DOCUMENTS, FAMILIES, st.integers(8, 30), st.sampled_from([1, 2, 3, 4096]), st.booleans())
def test_a_store_is_laid_out_as_the_sentences_at_hand(tmp_path_factory, documents, family, length, size, first):
    folder = tmp_path_factory.mktemp("store")
    (folder / "a.conll").write_text(_conll(documents, first), "utf-8")
    (folder / "b.conllu").write_text(_conllu(documents), "utf-8")
    task = TaskConfig(
        kind="tag",
        train=(str(folder / "a.conll"),),
        dev=(str(folder / "b.conllu"), str(folder / "a.conll")),
        labels=TAGS,
    )
    with pytest.MonkeyPatch.context() as patch:
        # Documents go on from chunk to chunk.
        patch.setattr("contexture.data.tasks.read.examples.CHUNK", size)
        patch.setattr(encode_examples, "_apart", lambda task: None)
        store = encode(task, TOKENIZERS[family], folder / "data", context="document")
    store.verify()
    expected = _shown(_held_out(_split(_sentences(documents), family), family, length))
    assert _shown(_held_out(store.splits["train"], family, length)) == expected
    # Two files: the last document of one is not that of the next.
    twice = {**expected, **{number + len(expected): line for number, line in expected.items()}}
    assert _shown(_held_out(store.splits["dev"], family, length)) == twice
    assert ExampleStore.open(folder / "data").context == "document"


def test_what_is_left_out_is_nobodys_context(tmp_path):
    content = "-DOCSTART- O\n\na O\nb O\n\nc\n\nd O\n\n-DOCSTART- O\n\n\n-DOCSTART- O\n\ne O\n"
    (tmp_path / "a.conll").write_text(content, "utf-8")
    task = TaskConfig(kind="tag", train=(str(tmp_path / "a.conll"),), labels=TAGS, bad_rows="skip")
    split = encode(task, PIECES, tmp_path / "data", context="document").splits["train"]
    assert {n: " ".join(line) for n, (line, _) in _shown(_held_out(split, "bert", 16)).items()} == {
        0: "[CLS] a b d [SEP]",
        1: "[CLS] a b d [SEP]",
        2: "[CLS] e [SEP]",
    }
    assert split.left_out == 1


def test_documents_are_held_out_whole(tmp_path):
    documents = [[[word], [word, word]] for word in [*"abcdefgh"] * 4]
    (tmp_path / "a.conll").write_text(_conll(documents), "utf-8")
    task = TaskConfig(kind="tag", train=(str(tmp_path / "a.conll"),), dev_fraction=0.3, labels=TAGS)
    store = encode(task, PIECES, tmp_path / "data", context="document")
    train, dev = (_shown(_held_out(store.splits[name], "bert", 16)) for name in ("train", "dev"))
    assert len(train) % 2 == len(dev) % 2 == 0 and len(train) + len(dev) == 64 and dev
    lines = [line for line, _ in (*train.values(), *dev.values())]
    assert all(len(set(line[1:-1])) == 1 and len(line) == 5 for line in lines)
    (tmp_path / "a.conll").write_text(_conll([[["a"], ["bb"]] * 40]), "utf-8")
    with pytest.raises(DataError, match=r"nothing is left to learn from \(with data.context=document, documents are"):
        encode(task, PIECES, tmp_path / "other", context="document")


def test_a_store_without_context_is_another(tmp_path):
    (tmp_path / "a.conll").write_text(_conll([[["a"], ["bb"]]]), "utf-8")
    task = TaskConfig(kind="tag", train=(str(tmp_path / "a.conll"),))
    alone = encode(task, PIECES, tmp_path / "alone")
    within = encode(task, PIECES, tmp_path / "within", context="document")
    assert (alone.index["format"], within.index["format"]) == (1, 2)
    assert alone.fingerprint != within.fingerprint
    assert not (tmp_path / "alone" / "train-documents.bin").exists()


@pytest.mark.parametrize("name", ["a.jsonl", "a.tsv", "published:msra_ner/train.tsv", "tfds:conll2003:train"])
def test_a_format_without_documents_is_one_clear_line(tmp_path, name):
    path = name if ":" in name else str(tmp_path / name)
    task = TaskConfig(kind="tag", train=(path,))
    with pytest.raises(DataError, match="no borders of documents, and data.context=document reads") as caught:
        check_examples(task, "document")
    assert "\n" not in str(caught.value) and str(caught.value).startswith(f"{path}: ")
    # The tables of other publishers are CoNLL's.
    with pytest.raises(DataError, match="CONTEXTURE_DATA is not set"), pytest.MonkeyPatch.context() as patch:
        patch.delenv("CONTEXTURE_DATA", raising=False)
        check_examples(TaskConfig(kind="tag", train=("published:ud_pos/en_ewt-ud-train.conllu",)), "document")


# Predictions, which hold no more than a few chunks


@settings(max_examples=60, deadline=None)
@given(DOCUMENTS, FAMILIES, st.integers(8, 24), st.integers(1, 3))
def test_a_chunk_with_its_neighbours_is_laid_out_as_the_whole_file(documents, family, length, size):
    sentences = _sentences(documents)
    expected = _shown(_held_out(_split(sentences, family), family, length))
    seen: list[Line] = []
    for before, chunk, after in chunks_in_documents(sentences, size, 1):
        # A reach of data.length makes chunks of as many examples; smaller ones have other chunks' words on both sides.
        assert len(chunk) <= size and {x.document for x in before} <= {chunk[0].document}
        assert {x.document for x in after} <= {chunk[-1].document}
    tokenizer = TOKENIZERS[family]
    for before, chunk, after in chunks_in_documents(sentences, size, length):
        numbers = reader(tokenizer)
        parts = [
            encode_chunk(x, "tag", numbers, Labels(TAGS), context="document") if x else None
            for x in (before, chunk, after)
        ]
        assert parts[1] is not None
        char_ids = numbers.char_ids() if isinstance(numbers, OpenVocabulary) else None
        split = in_memory(with_context(parts[0], parts[1], parts[2]), "tag", TAGS, "f", char_ids=char_ids)
        shown = _shown(_held_out(split, family, length))
        seen += [shown[number] for number in range(len(chunk))]
    assert dict(enumerate(seen)) == expected


def test_neighbours_are_as_many_as_can_be_read():
    sentences = [Tagged(("a", "b"), None, f"f:{n}", n // 30) for n in range(60)]
    parts = list(chunks_in_documents(sentences, 4, 9))
    # Chunks of 9: what is read of others has 9 words at most, in whole sentences.
    assert [len(chunk) for _, chunk, _ in parts] == [9] * 6 + [6]
    assert [len(before) for before, _, _ in parts] == [0, 5, 5, 5, 5, 5, 5]
    assert [len(after) for _, _, after in parts] == [5, 5, 3, 5, 5, 5, 0]
    assert [x.origin for x in parts[1][0]] == [f"f:{n}" for n in range(4, 9)]


def test_sentences_without_a_document_stand_for_themselves():
    sentences = [Tagged(("a", "b"), None, f"f:{n}") for n in range(3)]
    lines = [line for line, _ in _shown(_held_out(_split(sentences, "bert"), "bert", 16)).values()]
    assert lines == [["[CLS]", "a", "b", "[SEP]"]] * 3
    assert [(len(b), len(a)) for b, _, a in chunks_in_documents(sentences, 1, 1)] == [(0, 0)] * 3


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("bert", "[CLS] a bc/Y d/X ef [SEP]"),
        ("gpt", "_start_ a bc/Y d/X ef _classify_"),
        ("elmo", "a bc/Y d/X ef"),
    ],
)
def test_the_first_sequence_is_shown_with_its_context(family: Family, expected):
    split = _split(_sentences([[["a"], ["bc", "d"], ["ef"]]]), family)
    text = describe(_held_out(split, family, 16).read(0), 1, TOKENIZERS[family], TAGS, "tag", "document")
    assert text.splitlines()[0] == expected
