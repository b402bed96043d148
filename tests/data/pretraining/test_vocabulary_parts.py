"""A vocabulary that is learned of words counted in parts is that of the whole text, byte for byte."""

import gzip
import json
import random
import shutil
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contexture.data.cancel import NEVER
from contexture.data.config import LearnedKind
from contexture.data.errors import DataError
from contexture.data.pretraining import text_parts
from contexture.data.pretraining.text_parts import sampled
from contexture.data.pretraining.vocabulary_parts import Counting, count_part, learn_from_parts, learn_in_workers
from contexture.data.text.sources import expand
from contexture.data.tokenizers import word_counts
from contexture.train.run.vocabulary import learn
from tests.data.pretraining.test_parts import content
from tests.helpers.commands import done, json_of, run_command

KINDS = get_args(LearnedKind)
SIZE = 330
LINES = st.sampled_from(
    ["the cat sat.", "on-the mat", "", " ", "é ü", "日本語 です", "word " * 30, "a\tb", "don't", "\u2581"]
)
ENDS = st.sampled_from(["\n", "\r\n", "\n\n", "\n \n", "\r"])
TEXT = st.lists(st.tuples(LINES, ENDS), min_size=1, max_size=30).map(lambda x: "".join(a + b for a, b in x))


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_parts, "PIECE", 50)


def seen(read: int, documents: int, tokens: int) -> None:
    """Takes what was done."""


def counting_of(kind: str, paths: tuple[str, ...], lowercase: bool = True, splitter: str = "spaces") -> Counting:
    return Counting(
        kind=kind, input=paths, text_column="text", sample_gb=0.0, lowercase=lowercase, word_splitter=splitter
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    raw=st.lists(TEXT, min_size=1, max_size=3),
    endings=st.lists(st.sampled_from([".txt", ".jsonl", ".txt.gz"]), min_size=3, max_size=3),
    kind=st.sampled_from(KINDS),
    how=st.tuples(st.booleans(), st.sampled_from(["spaces", "punctuation"])),
    counts=st.tuples(st.integers(1, 12), st.integers(0, 10**6)),
    in_memory=st.sampled_from([3, 1000]),
)
def test_any_number_of_parts_gives_the_vocabulary_of_the_whole(
    tmp_path_factory, raw, endings, kind, how, counts, in_memory
):
    (lowercase, splitter), (count, seed) = how, counts
    folder: Path = tmp_path_factory.mktemp("vocabulary")
    for number, (text, ending) in enumerate(zip(raw, endings, strict=False)):
        rows = "".join(json.dumps({"text": text[at : at + 30]}) + "\n" for at in range(0, len(text), 30))
        encoded = (rows if ending == ".jsonl" else f"{text}the mat\nthe mat\n").encode()
        (folder / f"{number}{ending}").write_bytes(gzip.compress(encoded) if ending.endswith("gz") else encoded)
    paths = tuple(str(path) for path in sorted(folder.iterdir()))
    with pytest.MonkeyPatch.context() as patch:
        # What does not fit into memory goes through files, and is counted all the same; but it is not learned on.
        patch.setattr(word_counts, "MAX_WORDS", in_memory)
        try:
            pieces = sampled(expand(paths))
            expected: Any = learn(kind, [(pieces, 1.0)], SIZE, lowercase, NEVER, "files", splitter).files()
        except DataError as error:
            expected = str(error)
        counting = counting_of(kind, paths, lowercase, splitter)
        order = [*range(count), *random.Random(seed).sample(range(count), 1)]
        random.Random(seed).shuffle(order)
        for part in order:
            count_part(counting, folder / "parts", part, count, seen)
        try:
            learned: Any = learn_from_parts(folder / "parts", kind, SIZE, NEVER.check)[0].files()
        except DataError as error:
            learned = str(error)
    assert learned == expected


def test_every_part_counts_words_of_a_large_file(tmp_path: Path):
    """Else the law above could hold though one part did all the work."""
    (tmp_path / "a.txt").write_text("".join(f"line {number} of many\n" for number in range(200)))
    counting = counting_of("wordpiece", (str(tmp_path / "a.txt"),))
    reported: list[int] = []
    for part in range(7):
        count_part(counting, tmp_path / "parts", part, 7, lambda read, *_: reported.append(read))
        text = (tmp_path / "parts" / f"part-{part:05d}-of-00007" / "counts.txt").read_text()
        # Each number is in one part alone.
        assert 20 < sum("0123456789".find(line[0]) >= 0 for line in text.splitlines()) < 40
    assert sum(reported) == (tmp_path / "a.txt").stat().st_size


@pytest.mark.parametrize("kind", ["wordpiece", "byte-bpe"])
def test_the_command_counts_in_parts_and_in_workers(tmp_path, text_folder, kind):
    words = ["tokenizer", kind, "--input", text_folder]
    size = ["--vocab-size", 300]
    one = json_of(*words, *size, "--to", tmp_path / "one")
    to = tmp_path / "v"
    for part in (2, 0, 0, 1):
        assert json_of(*words, "--to", f"{to}/", "--part", f"{part}/3") == {
            "part": f"{to}.parts/part-0000{part}-of-00003"
        }
    assert json_of("tokenizer", kind, *size, "--join", "--to", to) == {**one, "tokenizer": str(to)}
    done(*words, *size, "--to", tmp_path / "two", "--workers", 2)
    assert content(to) == content(tmp_path / "two") == content(tmp_path / "one")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["one", "two", "v", "v.parts"]


@pytest.mark.long
def test_a_count_that_is_stopped_goes_on_with_the_parts_that_are_done(tmp_path):
    class Stop(Exception):
        pass

    (tmp_path / "a.txt").write_text("".join(f"line {number} of many\n" for number in range(20_000)))
    counting = counting_of("wordpiece", (str(tmp_path / "a.txt"),))

    def stop() -> None:
        if any(tmp_path.glob(".v.parts-*/part-*")):
            raise Stop

    with pytest.raises(Stop):
        learn_in_workers(counting, tmp_path / "v", SIZE, 2, stop)
    before = {each: each.stat().st_ino for each in tmp_path.glob(".v.parts-*/part-*/part.json")}
    assert before

    def kept() -> None:
        assert all(not each.exists() or each.stat().st_ino == inode for each, inode in before.items())

    learned, _ = learn_in_workers(counting, tmp_path / "v", SIZE, 2, kept)
    expected = learn("wordpiece", [(counting.pieces, 1.0)], SIZE, True, NEVER, "files", "spaces")
    assert learned.files() == expected.files()
    assert [each.name for each in tmp_path.iterdir()] == ["a.txt"]


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("the cat sat\n" * 30)
    counting = counting_of("wordpiece", (str(tmp_path / "a.txt"),))
    for part in range(3):
        count_part(counting, tmp_path / "parts", part, 3, seen)
    return tmp_path / "parts"


def test_parts_that_cannot_be_joined_are_named(parts, tmp_path):
    def refused(line: str, kind: str = "wordpiece") -> None:
        with pytest.raises(DataError, match=line):
            learn_from_parts(parts, kind, 100, NEVER.check)

    refused("parts: counts for wordpiece, not for byte-bpe; give that kind, or count again", "byte-bpe")
    place = parts / "part-00001-of-00003"
    (place / "counts.txt").write_text("the\t9\n")
    refused(r"part-00001-of-00003/counts.txt: damaged, not what was written; delete .*part-00001-of-00003, and make it")
    (place / "counts.txt").unlink()
    refused(r"part-00001-of-00003/counts.txt: damaged")
    (place / "part.json").write_text("{}")
    refused(r"part-00001-of-00003/part.json: not the description of a part")
    shutil.rmtree(place)
    refused("part 1 of 3 is missing; make it with --part 1/3")
    other = counting_of("wordpiece", (str(tmp_path / "a.txt"),), lowercase=False)
    with pytest.raises(DataError, match=r"a part of another preparation \(lowercase True, not False\)"):
        count_part(other, parts, 0, 3, seen)
    count_part(other, parts, 1, 3, seen)
    refused(r"part-00001-of-00003: a part of another preparation \(lowercase False, not True\)")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--part", "3/3"], "part=3/3 is not a part like 0/8 to 7/8"),
        (["--part", "0/3", "--workers", "2"], "workers= is for a whole vocabulary, not one part; leave --part out"),
        (["--part", "0/3", "--vocab-size", "9"], "vocab-size= is for a whole vocabulary, not one part"),
        (["--join"], "input= is for counting words; leave --join out"),
        (["--workers", "0"], "workers=0 is not a positive number of processes"),
    ],
)  # fmt: skip
def test_options_of_parts_that_do_not_fit_are_one_line(tmp_path, text_folder, capsys, words, line):
    given = ["tokenizer", "wordpiece", "--input", text_folder, "--to", tmp_path / "v", *words]
    code, said = run_command(capsys, *given)
    assert code == 2 and line in said and len(said.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_join_without_parts_is_one_line(tmp_path, capsys):
    code, said = run_command(capsys, "tokenizer", "wordpiece", "--to", tmp_path / "v", "--join")
    assert code == 2 and "v.parts: holds no parts of a preparation; make them with --part 0/N to N-1/N" in said
    code, said = run_command(capsys, "tokenizer", "wordpiece", "--to", tmp_path / "v")
    assert code == 2 and "input names no text; give a file, several, or a folder" in said
