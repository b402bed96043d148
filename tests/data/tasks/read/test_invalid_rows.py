"""A single odd row of a real file never ends the work: it is left out or read as unknown, counted, and said once."""

from pathlib import Path

import pytest

from contexture.data.config import TaskConfig
from contexture.data.errors import DataError
from contexture.data.tasks.encode.encode_examples import encode
from contexture.data.tasks.encode.example_tokens import encode_chunk, reader
from contexture.data.tasks.read.examples import Tagged, Text
from contexture.data.tasks.read.file_report import FileReport
from contexture.data.tasks.read.labels import Labels
from contexture.data.tasks.read.read_examples import examples
from contexture.data.tasks.store.example_store import ExampleStore
from contexture.data.tokenizers.byte_pair import ByteBPE, Gpt1BPE
from contexture.data.tokenizers.registry import load_tokenizer
from contexture.data.tokenizers.unknown_tokens import UnknownTokens
from contexture.data.tokenizers.word_level import SPECIAL, Words, learn_words
from contexture.data.tokenizers.wordpiece import WordPiece
from tests.helpers.logs import logged
from tests.helpers.slow_pairs import vocabulary

TOKENIZER = WordPiece(vocabulary(), lowercase=True)
GOOD = [(f"w{n % 9 + 1}", "ab"[n % 2]) for n in range(300)]


def _tsv(*odd: str, only: bool = False) -> str:
    lines = [] if only else [f"{text}\t{label}" for text, label in GOOD]
    lines[7:7] = odd
    return "\n".join(["text\tlabel", *lines, ""])


def _encode(folder: Path, content: str | bytes, name: str = "train.tsv", **more) -> tuple[ExampleStore, list[str]]:
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    task = TaskConfig(train=(str(file),), **{"kind": "classify", **more})
    with logged() as messages:
        store = encode(task, TOKENIZER, folder / "data")
    return store, [line for line in messages if line.startswith("warning: ")]


@pytest.mark.parametrize(
    ("row", "kept", "line"),
    [
        ("w1", 0, "left out 1 of 301 rows; the first: {}:9: 1 column where the header has 2"),
        ("w1\ta\tb", 0, "left out 1 of 301 rows; the first: {}:9: 3 columns where the header has 2"),
        ("w1\t", 0, "left out 1 of 301 rows; the first: {}:9: the label (column 'label') is empty"),
        ("\ta", 1, "1 empty text read as unknown; the first is at train.tsv:9"),
        ("\u200b\ta", 1, "1 word or text with no letter that the vocabulary can spell, read as unknown; the first is "
                         "the text '\\u200b' at train.tsv:9"),
        ('"w1, w2"\ta', 1, "1 field in double quotes; a *.tsv has no quoting"),
        ("w1\x00w2\ta", 1, ""),
        ("w1 " * 200_000 + "\ta", 1, ""),
        ("w1\ta\r", 1, ""),
    ],
)  # fmt: skip
def test_an_odd_row_of_a_table_is_counted_and_said_once(tmp_path, row, kept, line):
    store, messages = _encode(tmp_path, _tsv(row))
    assert store.splits["train"].examples == 300 + kept
    assert len(messages) == bool(line) and line.format(tmp_path / "train.tsv") in "".join(messages)


@pytest.mark.parametrize("name", ["train.tsv", "train.csv", "train.jsonl", "train.conll"])
def test_a_row_that_is_not_utf_8_is_left_out(tmp_path, name):
    """As one letter of Latin 1 in a file that is UTF-8 otherwise; in a quoted field of two lines too."""
    form = {
        "train.tsv": "{}\t{}\n",
        "train.csv": '"w1\n{}",{}\n',
        "train.jsonl": '{{"text": "{}", "label": "{}"}}\n',
        "train.conll": "w1 a\n{} {}\n\n",
    }[name]
    first = "" if name in ("train.jsonl", "train.conll") else "text\tlabel\n" if "tsv" in name else "text,label\n"
    rows = [form.format(f"w{n % 9 + 1}", "ab"[n % 2]).encode() for n in range(200)]
    rows[50] = form.format("Curaçao", "a").encode("latin-1")
    kind = "tag" if "conll" in name else "classify"
    store, messages = _encode(tmp_path, first.encode() + b"".join(rows), name, kind=kind)
    assert store.splits["train"].examples == 199 and len(messages) == 1
    assert "left out 1 of 200 rows" in messages[0] and "not UTF-8 (byte 0xe7 at column " in messages[0]


@pytest.mark.parametrize(
    ("name", "row", "line"),
    [
        ("train.tsv", b"w\xe7\ta\n", "not UTF-8 (byte 0xe7"),
        ("train.tsv", b"A title\n", "1 column where line 2 has 2; put a tab between columns"),
        ("train.csv", b"w\xe7,a\n", "not UTF-8 (byte 0xe7"),
        ("train.csv", b"w1,w2,a\n", "3 columns where line 2 has 2; put a comma between columns"),
        ("train.jsonl", b'{"text": "w\xe7"}\n', "not UTF-8 (byte 0xe7"),
        ("train.jsonl", b"{\n", "not JSON"),
        ("train.jsonl", b"[1]\n", "no object"),
        ("train.jsonl", b'{"text": "w1"}\n', "the label (column 'label') is missing"),
        ("train.jsonl", b'{"text": "w1", "review": "w2"}\n', "the label (column 'label') is missing"),
        ("train.conll", b"w\xe7 a\n\n", "not UTF-8 (byte 0xe7"),
        ("train.conll", b"title\nw1 a\n\n", "1 column where line 2 has 2; give every word its tag"),
        ("train.conllu", b"1\tw1\ta\tb\n\n", "4 columns where CoNLL-U has 10"),
        ("train.conllu", b"1\tw\xe7" + b"\ta" * 8 + b"\n\n", "not UTF-8 (byte 0xe7"),
    ],
)
def test_an_odd_row_that_is_the_first_is_left_out_as_any_other(tmp_path, name, row, line):
    """It does not say what all the others are to be."""
    form = {
        "tsv": "{}\t{}\n", "csv": "{},{}\n", "jsonl": '{{"text": "{}", "label": "{}"}}\n', "conll": "{} {}\n\n",
        "conllu": "1\t{}\t_\t{}" + "\t_" * 6 + "\n\n",
    }[name.partition(".")[2]]  # fmt: skip
    more = {"kind": "tag"} if "conll" in name else {} if "json" in name else {"text": "1", "label": "2"}
    rows = "".join(form.format(text, label) for text, label in GOOD)
    store, messages = _encode(tmp_path, row + rows.encode(), name, **more)
    assert store.splits["train"].examples == 300 and store.labels == ("a", "b") and len(messages) == 1
    assert f"left out 1 of 301 rows; the first: {tmp_path / name}:1: {line}" in messages[0]


@pytest.mark.parametrize("place", [0, 150])
def test_a_question_of_one_alternative_is_left_out(tmp_path, place):
    """One of more alternatives than the others is none of the odd ones."""
    rows = ['{"text": "w1", "choices": ["w2", "w3", "w4"], "label": 2}\n'] * 200
    rows.insert(place, '{"text": "w1", "choices": ["w2"], "label": 0}\n')
    rows.insert(99, '{"text": "w1", "choices": ["w2", "w3", "w4", "w5"], "label": 3}\n')
    store, messages = _encode(tmp_path, "".join(rows), "train.jsonl", kind="choice")
    assert store.splits["train"].examples == 201 and store.labels == ("0", "1", "2", "3") and len(messages) == 1
    expected = f"train.jsonl:{place + 1 + (place > 99)}: the alternatives (column 'choices') are 1; give at least two"
    assert f"left out 1 of 202 rows; the first: {tmp_path}/{expected}" in messages[0]


@pytest.mark.parametrize("name", ["train.tsv", "train.csv", "train.jsonl", "train.conll", "train.conllu"])
def test_a_file_of_odd_rows_alone_is_refused_with_the_first_of_them(tmp_path, name):
    more = {"kind": "tag"} if "conll" in name else {} if "json" in name else {"text": "1", "label": "2"}
    with pytest.raises(DataError, match=rf"{name}:1: not UTF-8 \(byte 0xe7"):
        _encode(tmp_path, b"w\xe7 a\n\n" * 300, name, **more)


def test_a_header_that_is_not_utf_8_ends_the_work(tmp_path):
    with pytest.raises(DataError, match=r"train\.tsv:1: not UTF-8 \(byte 0xe7"):
        _encode(tmp_path, b"text\tlabel\xe7\n" + b"w1\ta\n" * 300)


def test_a_byte_order_mark_and_line_ends_of_windows_change_nothing(tmp_path):
    store, messages = _encode(tmp_path, b"\xef\xbb\xbf" + _tsv().replace("\n", "\r\n").encode())
    assert store.splits["train"].examples == 300 and not messages and store.labels == ("a", "b")


@pytest.mark.parametrize("score", ["nan", "inf", "", "four", "1_0", "\u0663", "0x1", "1e308", "-1e39", "2e19"])
def test_a_label_that_is_no_number_is_left_out_of_a_regression(tmp_path, score):
    """Nor one so large that the sum of squares is infinite in float32, which would be the loss for good."""
    rows = "".join(f"w1\t{n / 7}\n" for n in range(200))
    store, messages = _encode(tmp_path, f"text\tlabel\n{rows}w2\t{score}\n", kind="regress")
    assert store.splits["train"].examples == 200 and "left out 1 of 201 rows" in messages[0]


@pytest.mark.parametrize(
    "row", ['{"text": "\\ud800", "label": "a"}', "{", "[1]", '{"text": "w1"}', '{"text": 3, "label": 1}']
)
def test_an_odd_row_of_jsonl_is_left_out(tmp_path, row):
    rows = [f'{{"text": "{text}", "label": "{label}"}}' for text, label in GOOD]
    store, messages = _encode(tmp_path, "\n".join([*rows[:5], row, *rows[5:]]), "train.jsonl")
    assert store.splits["train"].examples == 300 and "left out 1 of 301 rows" in messages[0]


def test_a_sentence_with_a_broken_line_is_left_out(tmp_path):
    good = "".join(f"w{n % 9 + 1} X\nw2 Y\n\n" for n in range(150))
    store, messages = _encode(tmp_path, good + "w1 X\nw2\nw3 X\n\n" + good, "train.conll", kind="tag")
    assert store.splits["train"].examples == 300 and "left out 1 of 301 rows" in messages[0] and ":452:" in messages[0]


def test_a_held_out_label_that_training_lacks_is_left_out(tmp_path):
    (tmp_path / "dev.tsv").write_text(_tsv("w1\tc"))
    store, messages = _encode(tmp_path, _tsv(), dev=(str(tmp_path / "dev.tsv"),))
    assert store.splits["dev"].examples == 300
    assert "dev.tsv: left out 1 of 301 rows" in messages[0] and "label 'c' is not one of a, b" in messages[0]


@pytest.mark.parametrize("row", ["w1", "w1\t", "\ta"])
def test_more_odd_rows_than_one_in_a_hundred_end_the_work(tmp_path, row):
    with pytest.raises(DataError, match=r"train\.tsv:9: .*\(4 of 304 rows are odd; --task.bad-rows skip"):
        _encode(tmp_path, _tsv(*[row] * 4))
    assert [path.name for path in tmp_path.iterdir()] == ["train.tsv"]


@pytest.mark.parametrize(("rows", "limit"), [(9, 0), (10, 1), (19, 1), (20, 2), (60, 3), (300, 3), (500, 5)])
def test_so_many_odd_rows_are_left_out_and_one_more_ends_the_work(tmp_path, rows, limit):
    """One in a hundred; of a short file three, but no more than one in ten."""
    good = "".join(f"w{n % 9 + 1}\t{'ab'[n % 2]}\n" for n in range(rows))
    for odd in (limit, limit + 1):
        (tmp_path / "t.tsv").write_text("text\tlabel\n" + "".join(good.splitlines(True)[odd:]) + "w1\n" * odd)
        report = FileReport("t.tsv", TOKENIZER)
        list(examples(str(tmp_path / "t.tsv"), TaskConfig(kind="classify"), labelled=True, report=report))
        if odd > limit:
            with pytest.raises(DataError, match=r"t\.tsv:\d+: 1 column where the header has 2"):
                report.finish()
        else:
            with logged() as messages:
                report.finish()
            warnings = [f"warning: t.tsv: left out {odd} of {rows} rows"] if odd else []
            assert [line.partition("; ")[0] for line in messages] == warnings


def test_bad_rows_fail_at_the_first_or_are_skipped_however_many(tmp_path):
    rows = [*["w1"] * 150, "w2\ta", "\ta", "w3\tb", "w4\ta"]
    with pytest.raises(DataError, match=r"train\.tsv:2: 1 column where the header has 2"):
        _encode(tmp_path, _tsv(*rows, only=True), bad_rows="fail")
    with pytest.raises(DataError, match=r"train\.tsv:3: the text \(column 'text'\) is empty"):
        _encode(tmp_path, _tsv("w1\ta", "\ta", "w2\tb", only=True), bad_rows="fail")
    with pytest.raises(DataError, match="--task.bad-rows skip leaves them out"):
        _encode(tmp_path, _tsv(*rows, only=True))
    store, messages = _encode(tmp_path, _tsv(*rows, only=True), bad_rows="skip")
    split = store.splits["train"]
    assert (split.examples, split.left_out) == (4, 150)
    assert "left out 150 of 154 rows; the first: " in messages[0] and "train.tsv:2" in messages[0]


def test_a_file_of_bad_rows_alone_is_an_error_also_where_they_are_skipped(tmp_path):
    with pytest.raises(DataError, match=r"train\.tsv:2: 1 column .*\(120 of 120 rows are odd\)"):
        _encode(tmp_path, _tsv(*["w1"] * 120, only=True), bad_rows="skip")


def test_a_file_of_odd_rows_ends_the_work_early(tmp_path):
    (tmp_path / "t.tsv").write_text("text\tlabel\n" + "w1\n" * 10_000)
    report = FileReport("t.tsv", TOKENIZER)
    with pytest.raises(DataError):
        list(examples(str(tmp_path / "t.tsv"), TaskConfig(kind="classify"), labelled=True, report=report))
    assert report.rows == 100


def test_each_kind_of_odd_row_is_told_with_its_own_first_place(tmp_path):
    _, messages = _encode(tmp_path, _tsv("\ta", "w1", "\u200b\ta"))
    assert (
        len(messages) == 3
        and "left out 1 of 303 rows; the first: " in messages[0]
        and "train.tsv:10: 1 column" in messages[0]
    )
    assert "1 empty text read as unknown; the first is at train.tsv:9" in messages[1]
    assert "the first is the text '\\u200b' at train.tsv:11" in messages[2]


def test_an_empty_word_is_counted_as_empty_alone(tmp_path):
    rows = '{"words": ["w1", "w2"], "tags": ["X", "Y"]}\n' * 200
    _, messages = _encode(tmp_path, rows + '{"words": ["w1", ""], "tags": ["X", "Y"]}\n', "train.jsonl", kind="tag")
    assert len(messages) == 1 and "1 empty text read as unknown; the first is at train.jsonl:201" in messages[0]


def test_where_every_row_wants_an_answer_empty_texts_keep_their_place(tmp_path):
    (tmp_path / "t.tsv").write_text("text\tx\nw1\t1\n\t2\nw2\t3\n")
    task = TaskConfig(kind="classify")
    report = FileReport("t.tsv", TOKENIZER, every_row=True)
    read = list(examples(str(tmp_path / "t.tsv"), task, labelled=False, report=report))
    assert [example.text for example in read if isinstance(example, Text)] == ["w1", "", "w2"]
    coded = encode_chunk(read, "classify", TOKENIZER, Labels(["a"]), report)
    assert coded.tokens.tolist()[1] == TOKENIZER.unk
    (tmp_path / "t.tsv").write_text("text\tx\nw1\t1\nw2\n")
    with pytest.raises(DataError, match=r"t\.tsv:3: 1 column"):
        list(examples(str(tmp_path / "t.tsv"), task, labelled=False, report=report))


@pytest.fixture(scope="module")
def published_tokenizers(shared):
    return [load_tokenizer(shared / "data" / name) for name in ("vocab_gpt1", "vocab_gpt2")]


@pytest.mark.parametrize("word", ["\ufe0f", "\u200b", "\u200d", " ", "\x01"])
def test_every_tokenizer_reads_a_word_without_a_piece(published_tokenizers, word):
    tokenizers = [TOKENIZER, *published_tokenizers, Words([*SPECIAL, "w1"])]
    assert isinstance(tokenizers[1], Gpt1BPE) and isinstance(tokenizers[2], ByteBPE)
    for tokenizer in tokenizers:
        report = FileReport("f", reader(tokenizer))
        read = [Tagged(("w1", word, "w1"), ("X", "Y", "X"), "f:1")]
        coded = encode_chunk(read, "tag", reader(tokenizer), Labels(), report)
        assert coded.tags is not None and (coded.tags >= 0).sum() == 3
        text = encode_chunk(
            [Text(word, "X", "f:1"), Text("", "X", "f:2")], "classify", reader(tokenizer), Labels(), report
        )
        assert (text.rows["b"] > text.rows["a"]).all() or len(text.tokens) >= 2


def test_unknown_tokens_are_counted_and_their_commonest_words_named():
    unknown = UnknownTokens(TOKENIZER)
    texts = ["w1 ☃ w2", "ß☃ w1", "w3"]
    unknown.add(texts, TOKENIZER.encode(texts))
    line = unknown.warning("train.tsv", "do this")
    assert unknown.unknown == 2 and "train.tsv: 33.3% of the tokens are [UNK]" in line and line.endswith("; do this")
    assert "most often '☃' (2)" in line
    assert not UnknownTokens(TOKENIZER).warning("train.tsv", "")


def test_a_vocabulary_of_words_lacks_words_and_not_their_letters():
    tokenizer = learn_words(["there blaze there blaze"], 8)
    unknown = UnknownTokens(tokenizer)
    texts = ["there zebra blaze", "the zebra", "☃"]
    unknown.add(texts, tokenizer.encode(texts))
    assert unknown.commonest() == [("zebra", 2), ("the", 1), ("☃", 1)]


def test_text_of_unknown_words_is_said_before_fine_tuning(tmp_path):
    _, messages = _encode(tmp_path, _tsv().replace("w3", "☃"))
    assert (
        len(messages) == 1
        and "of the tokens are [UNK]" in messages[0]
        and "start from a run whose vocab" in messages[0]
    )
    assert not _encode_again(tmp_path)


def _encode_again(folder: Path) -> list[str]:
    (folder / "more").mkdir()
    return _encode(folder / "more", _tsv())[1]


FILES = [
    ("cls_banking77/train.csv", {"kind": "classify"}),
    ("cls_banking77/test.csv", {"kind": "classify"}),
    ("pair_snli/train_subset.tsv", {"kind": "classify"}),
    ("pair_snli/dev_subset.tsv", {"kind": "classify"}),
    ("tag_ud_en_ewt/dev.conllu", {"kind": "tag"}),
    ("tag_ud_en_ewt/test.conllu", {"kind": "tag"}),
    ("xling_ud_pos/de.dev.conllu", {"kind": "tag"}),
    ("xling_ud_pos/zh.dev.conllu", {"kind": "tag"}),
    ("xling_ud_pos/ru.test.conllu", {"kind": "tag"}),
    ("mc_xcopa_zh/val.zh.jsonl", {"kind": "choice", "text": "premise"}),
    ("mc_swag_fixture/swag.csv", {"kind": "choice", "text": "startphrase"}),
    ("par_pud/pud.tsv", {"kind": "classify", "text": "zh", "label": "id"}),
    ("coref_gap/gap-test.tsv", {"kind": "classify", "text": "Text", "label": "A-coref"}),
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "task"), FILES)
def test_real_files_are_read_to_their_end(shared, tmp_path, name, task):
    for place, tokenizer in enumerate((TOKENIZER, load_tokenizer(shared / "data" / "vocab_gpt1"))):
        config = TaskConfig(train=(str(shared / "data" / name),), **task)
        assert encode(config, tokenizer, tmp_path / str(place)).splits["train"].examples


def test_what_an_evaluation_cannot_be_told_is_not_proposed(tmp_path):
    """It has no --task.bad-rows: the run's own holds."""
    file = tmp_path / "dev.tsv"
    file.write_text(_tsv(*["w1"] * 4))
    with pytest.raises(DataError, match=r"dev\.tsv:9: .*\(4 of 304 rows are odd\)$"):
        encode(TaskConfig(kind="classify", dev=(str(file),)), TOKENIZER, tmp_path / "data", labels=("a", "b"))


@pytest.mark.parametrize("row", ["\ta", "w1"])
def test_one_odd_row_of_hundreds_fails_where_bad_rows_fail(tmp_path, row):
    with pytest.raises(DataError, match=r"train\.tsv:\d+: "):
        _encode(tmp_path, _tsv(row), bad_rows="fail")


def test_an_empty_text_to_predict_for_is_answered_also_where_bad_rows_fail():
    report = FileReport("t.tsv", TOKENIZER, every_row=True, bad_rows="fail")
    report.read_empty(DataError("t.tsv:2: the text is empty"), "t.tsv:2")
    assert report.empty == 1
