"""Parts of a text that are tokenised apart and joined are the shards of the whole text, byte for byte."""

import gzip
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contexture.data.config import DataConfig, Stream
from contexture.data.errors import DataError
from contexture.data.pretraining import part_workers, text_parts, tokenize_corpus
from contexture.data.pretraining.join_parts import join
from contexture.data.pretraining.part_workers import Tally
from contexture.data.pretraining.shards import Shards
from contexture.data.pretraining.text_parts import job_of, sampled
from contexture.data.pretraining.tokenize_corpus import prepare, prepare_job, tokenize_part
from contexture.data.text.sources import TextFile, expand
from contexture.data.tokenizers.base import Tokenizer
from contexture.data.tokenizers.word_level import Words
from contexture.data.tokenizers.wordpiece import WordPiece
from tests.conftest import ROOT
from tests.helpers.commands import done, json_of, run_command
from tests.helpers.long import long
from tests.helpers.slow_pairs import vocabulary

STREAMS: list[Stream] = ["sentence_pairs", "windows", "lanes"]
PIECES = WordPiece(vocabulary(), lowercase=True)
WORDS = Words(["<S>", "</S>", "<UNK>", "w5", "w6"])
LINES = st.sampled_from(
    ["w5 w6 w7.", "w8", "", " ", "\t", "w9 w10 w11 w12 w13", "w5 " * 40, "a-word-nobody-knows", "é"]
)
ENDS = st.sampled_from(["\n", "\r\n", "\n\n", "\n \n", "\r"])
TEXT = st.lists(st.tuples(LINES, ENDS), min_size=1, max_size=40).map(lambda x: "".join(a + b for a, b in x))


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_parts, "PIECE", 50)


def seen(read: int, documents: int, tokens: int) -> None:
    """Takes what was done."""


def tokenizer_of(stream: Stream) -> Tokenizer:
    return WORDS if stream == "lanes" else PIECES


def content(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def in_parts(config: DataConfig, stream: Stream, folder: Path, count: int, order: list[int]) -> Shards:
    """Tokenises parts in an order, in which some may be named twice, and joins them."""
    job = job_of(config, tokenizer_of(stream), stream, per_file=37)
    for part in order:
        tokenize_part(job, folder / "parts", part, count, seen)
    return join(folder / "parts", folder / "shards")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(TEXT, min_size=1, max_size=3),
    kinds=st.lists(st.sampled_from([".txt", ".jsonl", ".txt.gz", "wiki_0"]), min_size=3, max_size=3),
    stream=st.sampled_from(STREAMS),
    documents=st.sampled_from(["blank_lines", "files"]),
    split=st.booleans(),
    mark=st.booleans(),
    counts=st.tuples(st.integers(2, 12), st.integers(0, 10**6)),
)
def test_joined_parts_are_the_shards_of_the_whole_text(
    tmp_path_factory, texts, kinds, stream, documents, split, mark, counts
):
    folder = tmp_path_factory.mktemp("parts")
    for number, (text, kind) in enumerate(zip(texts, kinds, strict=False)):
        pieces = [text[at : at + 30] for at in range(0, len(text), 30)]
        made = {
            ".jsonl": "".join(
                json.dumps({"body": p, "id": n, "lang": p[:1] or "x"}) + "\n" for n, p in enumerate(pieces)
            ),
            "wiki_0": "".join(f'<doc id="{n}">\n{piece}\n</doc>\n' for n, piece in enumerate(pieces)),
        }
        raw = (made[kind] if kind in made else "\ufeff" * mark + text + "w5\nw6\n").encode()
        # WikiExtractor's names have no suffix.
        name = f"{kind}{number}" if kind.startswith("wiki") else f"{number}{kind}"
        (folder / name).write_bytes(gzip.compress(raw) if kind.endswith("gz") else raw)
    paths = tuple(str(path) for path in sorted(folder.iterdir()))
    column = "body" if {".jsonl", "wiki_0"} & {*kinds[: len(texts)]} else "text"
    config = DataConfig(path=paths, documents=documents, split_sentences=split, dev_fraction=0.3, text_column=column)
    try:
        prepare(config, tokenizer_of(stream), folder / "whole", stream=stream, per_file=37)
    except DataError as error:
        expected: Any = str(error).rpartition(":")[2]
    else:
        expected = content(folder / "whole")
    count, seed = counts
    order = [*range(count), *random.Random(seed).sample(range(count), 2)]
    random.Random(seed).shuffle(order)
    try:
        shards = in_parts(config, stream, folder, count, order)
    except DataError as error:
        assert str(error).rpartition(":")[2] == expected
    else:
        assert content(shards.folder) == expected


@pytest.mark.parametrize("stream", STREAMS)
def test_every_part_has_text_of_a_large_file(tmp_path: Path, stream: Stream):
    """Else the law above could hold though one part did all the work."""
    lines = [f"w{5 + n % 9} w{5 + n % 7}.\n" + "\n" * (n % 3 == 0) for n in range(300)]
    (tmp_path / "a.txt").write_text("".join(lines))
    config = DataConfig(path=(str(tmp_path / "a.txt"),))
    job = job_of(config, tokenizer_of(stream), stream)
    for part in range(7):
        tokenize_part(job, tmp_path / "parts", part, 7, seen)
        index = json.loads((tmp_path / "parts" / f"part-{part:05d}-of-00007" / "part.json").read_text())
        assert index["spans"][0]["sentences"] > 3
    prepare(config, tokenizer_of(stream), tmp_path / "whole", stream=stream)
    assert content(join(tmp_path / "parts", tmp_path / "shards").folder) == content(tmp_path / "whole")


@pytest.mark.parametrize(
    ("raw", "at", "border"),
    [
        (b"a\n\nb\n", 1, 3), (b"a\n\nb\n", 3, 3), (b"a\n\nb\n", 4, 5), (b"a\r\n\r\nb", 1, 5), (b"a\n \nb\n\nc", 1, 7),
        (b"\n\n\n\na", 1, 2), (b"ab", 1, 2),
        (b"a" * 70_000 + b"\n\nb", 1, 70_002), (b"a" * 65_535 + b"\n\nb", 9, 65_537),
    ],
)  # fmt: skip
def test_a_document_begins_after_an_empty_line(tmp_path: Path, raw: bytes, at: int, border: int):
    (tmp_path / "a.txt").write_bytes(raw)
    assert TextFile(tmp_path / "a.txt").document_border(at) == border


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """Three parts of a text."""
    (tmp_path / "a.txt").write_text("w5 w6.\nw7 w8.\n\n" * 30)
    job = job_of(DataConfig(path=(str(tmp_path / "a.txt"),)), PIECES, "sentence_pairs")
    for part in range(3):
        tokenize_part(job, tmp_path / "parts", part, 3, seen)
    return tmp_path / "parts"


def refused(parts: Path, line: str) -> None:
    with pytest.raises(DataError, match=line):
        join(parts, parts.parent / "shards")
    # Nothing is left, and no part is lost.
    assert sorted(each.name for each in parts.parent.iterdir() if "shards" in each.name) == []


def test_a_part_that_is_missing_is_named(parts):
    shutil.rmtree(parts / "part-00001-of-00003")
    refused(parts, r"parts: part 1 of 3 is missing; make it with --part 1/3$")
    shutil.rmtree(parts / "part-00002-of-00003")
    refused(parts, r"parts: part 1 of 3 and 1 more are missing; make it with --part 1/3$")
    refused(parts.parent / "nowhere", "nowhere: holds no parts of a preparation; make them with --part 0/N to N-1/N")


def test_parts_of_two_counts_are_refused(parts, tmp_path):
    job = job_of(DataConfig(path=(str(tmp_path / "a.txt"),)), PIECES, "sentence_pairs")
    tokenize_part(job, parts, 0, 2, seen)
    refused(parts, "holds parts of 2 and of 3; delete those of one")


def test_a_part_of_other_settings_is_named(parts, tmp_path):
    (tmp_path / "b.txt").write_text("w5 w6.\nw7 w8.\n\n" * 30)
    others = [
        DataConfig(path=(str(tmp_path / "a.txt"),), split_sentences=False),
        DataConfig(path=(str(tmp_path / "b.txt"),)),
    ]
    lines = ["split sentences False, not True", "other sources: b.txt of 450 bytes"]
    for config, line in zip(others, lines, strict=True):
        job = job_of(config, PIECES, "sentence_pairs")
        with pytest.raises(DataError, match="a part of another preparation"):
            tokenize_part(job, parts, 1, 3, seen)
        shutil.rmtree(parts / "part-00001-of-00003")
        tokenize_part(job, parts, 1, 3, seen)
        refused(parts, rf"part-00001-of-00003: a part of another preparation \({line}\); delete")


@pytest.mark.parametrize("name", ["tokens.bin", "ends.bin", "borders.bin", "unigrams.bin", "part.json"])
@pytest.mark.parametrize("harm", ["flipped", "cut", "longer"])
def test_a_damaged_part_is_named(parts, name, harm):
    file = parts / "part-00001-of-00003" / name
    raw = bytearray(file.read_bytes())
    if harm == "flipped":
        raw[len(raw) // 2] ^= 1
    file.write_bytes({"flipped": raw, "cut": raw[:-1], "longer": raw + b"x"}[harm] if name != "part.json" else raw[:-5])
    refused(parts, rf"part-00001-of-00003/{name}: (damaged|not the description of a part)")


def test_a_fault_in_a_later_part_names_its_line(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"w5 w6.\nw7.\n\n" * 30 + b"w5.\n\xff\n\n" + b"w5 w6.\nw7.\n\n" * 30)
    job = job_of(DataConfig(path=(str(tmp_path / "a.txt"),)), PIECES, "sentence_pairs")
    failed = 0
    for part in range(5):
        try:
            tokenize_part(job, tmp_path / "parts", part, 5, seen)
        except DataError as error:
            failed += 1
            assert str(error).startswith(f"{tmp_path / 'a.txt'}:92: not UTF-8 (byte 0xff at column 1)")
    assert failed == 1 and len(list((tmp_path / "parts").iterdir())) == 4


def test_a_sample_is_pieces_at_equal_distances(tmp_path):
    """Of whole lines, each at most once, also without blank lines; a small text is its own sample."""
    lines = [f"line {number}" for number in range(1000)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"whole\n"))
    sources = expand([tmp_path / "a.txt", tmp_path / "b.txt.gz"])
    sample = [line for source in sampled(sources, 1000) for _, line in source.documents() if line]
    assert set(sample) <= {*lines, "whole"} and len(set(sample)) == len(sample)
    assert 900 < len("\n".join(sample)) < 1200
    numbers = [int(line.split()[1]) for line in sample if line != "whole"]
    # Nowhere more than a tenth of the text away.
    assert max(b - a for a, b in pairwise([0, *numbers, 999])) < 100
    assert sampled(sources, 1e6) != sources  # in pieces, which are all of it
    assert [line for source in sampled(sources, 1e6) for _, line in source.documents()] == [*lines, "whole"]


_KILLED = """
import sys, time
from pathlib import Path
from contexture.data.config import DataConfig
from contexture.data.pretraining import part_workers, text_parts, tokenize_corpus
from tests.data.pretraining.test_parts import PIECES
text_parts.PIECE = 50
def slowly(done, total):
    time.sleep(0.02)
tokenize_corpus.prepare(DataConfig(path=(sys.argv[1],)), PIECES, Path(sys.argv[2]), slowly)
"""


def test_a_killed_preparation_goes_on_with_the_parts_that_are_done(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("w5 w6.\nw7 w8.\n\n" * 200)
    words = [sys.executable, "-c", _KILLED, str(tmp_path / "a.txt"), str(tmp_path / "shards")]
    process = subprocess.Popen(words, cwd=ROOT)
    deadline = time.monotonic() + 60
    while len(done := list(tmp_path.glob(".shards.parts-*/part-*"))) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(done) >= 5 and not (tmp_path / "shards").exists()
    made: list[int] = []
    written = tokenize_corpus._PartWriter.finish
    monkeypatch.setattr(
        tokenize_corpus._PartWriter, "finish", lambda self, part, count: (made.append(part), written(self, part, count))
    )
    config = DataConfig(path=(str(tmp_path / "a.txt"),))
    prepare(config, PIECES, tmp_path / "shards")
    assert len(made) < 64 - 4 and 0 not in made
    prepare(config, PIECES, tmp_path / "again")
    assert content(tmp_path / "shards") == content(tmp_path / "again")
    # Nothing else is left.
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.txt", "again", "shards"]


@pytest.mark.parametrize("stream", ["sentence_pairs", *long("windows", "lanes")])
def test_workers_make_the_shards_that_one_process_makes(tmp_path, stream):
    (tmp_path / "a.txt").write_text("w5 w6.\nw7 w8 w9.\n\n" * 60)
    config, tally = DataConfig(path=(str(tmp_path / "a.txt"),)), Tally(0)
    reported: list[tuple[int, int]] = []
    prepare(config, tokenizer_of(stream), tmp_path / "one", stream=stream)
    job = job_of(config, tokenizer_of(stream), stream)
    prepare_job(job, tmp_path / "two", lambda *at: reported.append(at), 2, tally)
    assert content(tmp_path / "one") == content(tmp_path / "two")
    split = Shards.open(tmp_path / "two").splits["train"]
    size = (tmp_path / "a.txt").stat().st_size
    assert reported[-1] == (size, size) and (tally.documents, tally.tokens) == (split.documents, split.tokens)


def test_a_fault_that_a_worker_meets_is_one_line(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"w5 w6.\nw7.\n\n" * 30 + b"\xff\n\n")
    with pytest.raises(DataError, match=r"a.txt:91: not UTF-8 \(byte 0xff at column 1\)"):
        prepare(DataConfig(path=(str(tmp_path / "a.txt"),)), PIECES, tmp_path / "s", workers=2)
    assert [each.name for each in tmp_path.iterdir()] == ["a.txt"]


def test_a_worker_that_is_killed_is_named_and_its_part_is_made_again(tmp_path, monkeypatch):
    # Parts that take a while: it is killed in the middle of them.
    monkeypatch.setattr(text_parts, "PIECE", 5000)
    (tmp_path / "a.txt").write_text("w5 w6.\nw7 w8.\n\n" * 30_000)
    config = DataConfig(path=(str(tmp_path / "a.txt"),))
    started = part_workers._SPAWN.Process
    processes: list[Any] = []

    def start(**options: Any) -> Any:
        processes.append(started(**options))
        return processes[-1]

    monkeypatch.setattr(part_workers._SPAWN, "Process", start)

    class Killing(dict[int, str]):
        def __setitem__(self, worker: int, part: str) -> None:
            if worker == 1:
                processes[1].kill()

    job, tally = job_of(config, PIECES, "sentence_pairs"), Tally(0, workers=Killing())
    with pytest.raises(OSError, match="worker 1 was killed by signal 9; the same command resumes from the parts that"):
        prepare_job(job, tmp_path / "s", workers=2, tally=tally)
    monkeypatch.setattr(part_workers._SPAWN, "Process", started)
    prepare(config, PIECES, tmp_path / "s", workers=2)
    prepare(config, PIECES, tmp_path / "one")
    assert content(tmp_path / "s") == content(tmp_path / "one")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.txt", "one", "s"]


def test_the_command_makes_parts_and_joins_them(tmp_path, text_folder, capsys):
    tokenizer = tmp_path / "v"
    done("tokenizer", "wordpiece", "--input", text_folder, "--vocab-size", 150, "--to", tokenizer)
    words = ["prepare", "bert.tiny", "--input", text_folder, "--tokenizer", tokenizer]
    whole = json_of(*words, "--to", tmp_path / "whole", "--workers", 2)
    to = tmp_path / "shards"
    for part in (2, 0, 0, 1):
        assert (
            json_of(*words, "--to", f"{to}/", "--part", f"{part}/3")["part"] == f"{to}.parts/part-0000{part}-of-00003"
        )
    assert json_of("prepare", "bert.tiny", "--join", "--to", f"{to}/") == {**whole, "shards": f"{to}/"}
    assert content(to) == content(tmp_path / "whole")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--part", "3/3"], "part=3/3 is not a part like 0/8 to 7/8"),
        (["--part", "0/0"], "part=0/0 is not a part like"),
        (["--part", "one"], "part=one is not a part like"),
        (["--part", "0/3"], "part= wants one vocabulary for all parts; learn it first (contexture tokenizer …)"),
        (["--part", "0/3", "--workers", "2", "--tokenizer", "v"], "workers= is for a whole preparation, not one part"),
        (["--join"], "input= is for making parts; leave --join out"),
        (["--workers", "-1"], "workers=-1 is not a positive number of processes"),
        (["--per-worker"], "per-worker= is for several workers of this machine; give --workers 4"),
    ],
)  # fmt: skip
def test_options_of_parts_that_do_not_fit_are_one_line(tmp_path, text_folder, capsys, words, line):
    code, said = run_command(capsys, "prepare", "bert.tiny", "--input", text_folder, "--to", tmp_path / "s", *words)
    assert code == 2 and line in said and len(said.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_join_without_parts_is_one_line(tmp_path, capsys):
    code, said = run_command(capsys, "prepare", "bert.tiny", "--to", tmp_path / "s", "--join")
    assert code == 2 and "s.parts: holds no parts of a preparation; make them with --part 0/N to N-1/N" in said
    code, said = run_command(capsys, "prepare", "bert.tiny", "--to", tmp_path / "s")
    assert code == 2 and "input names no text; give a file, several, or a folder" in said


def _started(tmp_path: Path, **options: Any) -> subprocess.Popen[str]:
    """A slow preparation by two workers, in a process of its own."""
    program = _KILLED.replace("slowly)", "slowly, workers=2)")
    words = [sys.executable, "-c", program, str(tmp_path / "a.txt"), str(tmp_path / "shards")]
    return subprocess.Popen(words, cwd=ROOT, text=True, **options)


def _wait_for_parts(tmp_path: Path, count: int) -> Path:
    deadline = time.monotonic() + 60
    while len(done := list(tmp_path.glob(".shards.parts-*/part-*"))) < count and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(done) >= count
    return done[0].parent


def test_workers_end_with_the_process_that_started_them(tmp_path):
    """However it ended; what they have done is used by the next one."""
    (tmp_path / "a.txt").write_text("w5 w6.\nw7 w8.\n\n" * 2000)
    config = DataConfig(path=(str(tmp_path / "a.txt"),))
    process = _started(tmp_path)
    _wait_for_parts(tmp_path, 2)
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
    assert len(workers := children.stdout.split()) >= 2
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{worker}").exists() for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    prepare(config, PIECES, tmp_path / "shards", workers=2)
    prepare(config, PIECES, tmp_path / "one")
    assert content(tmp_path / "shards") == content(tmp_path / "one")


def test_a_second_preparation_at_one_place_is_refused_and_harms_nothing(tmp_path):
    (tmp_path / "a.txt").write_text("w5 w6.\nw7 w8.\n\n" * 2000)
    config = DataConfig(path=(str(tmp_path / "a.txt"),))
    process = _started(tmp_path)
    _wait_for_parts(tmp_path, 1)
    with pytest.raises(DataError, match="another process makes the same now; wait for it"):
        prepare(config, PIECES, tmp_path / "shards")
    assert process.wait(60) == 0
    prepare(config, PIECES, tmp_path / "one")
    assert content(tmp_path / "shards") == content(tmp_path / "one")


def test_a_part_that_somebody_else_has_made_meanwhile_is_taken(parts, tmp_path):
    job = job_of(DataConfig(path=(str(tmp_path / "a.txt"),)), PIECES, "sentence_pairs")
    expected = content(parts / "part-00001-of-00003")
    shutil.move(parts / "part-00001-of-00003", tmp_path / "aside")

    def meanwhile(*_: int) -> None:
        if not (parts / "part-00001-of-00003").exists():
            shutil.copytree(tmp_path / "aside", parts / "part-00001-of-00003")

    tokenize_part(job, parts, 1, 3, meanwhile)
    assert content(parts / "part-00001-of-00003") == expected


def test_text_that_was_changed_between_two_parts_is_noticed(parts, tmp_path):
    """Though it has the same name and the same size."""
    file = tmp_path / "a.txt"
    file.write_text(file.read_text().replace("w5", "w9"))
    job = job_of(DataConfig(path=(str(file),)), PIECES, "sentence_pairs")
    shutil.rmtree(parts / "part-00001-of-00003")
    tokenize_part(job, parts, 1, 3, seen)
    refused(parts, r"part-00001-of-00003: a part of another preparation \(other sources: a.txt of 450 bytes\)")


def test_a_join_can_be_stopped(parts, tmp_path):
    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    with pytest.raises(Stop):
        join(parts, tmp_path / "shards", check=stop)
    assert not list(tmp_path.glob("*shards*"))
    assert join(parts, tmp_path / "shards").splits["train"].documents == 30


def test_parts_of_another_stream_are_refused(parts, tmp_path):
    with pytest.raises(DataError, match="parts for the stream sentence_pairs, and this recipe reads windows"):
        join(parts, tmp_path / "shards", stream="windows")


@pytest.mark.parametrize("name", ["ends.bin", "tokenizer"])
def test_a_part_that_lacks_a_file_is_named(parts, name):
    lost = parts / "part-00000-of-00003" / name
    shutil.rmtree(lost) if lost.is_dir() else lost.unlink()
    refused(parts, rf"part-00000-of-00003/{name}: (damaged, not what was written|not the tokenizer)")


def test_a_text_without_empty_lines_is_one_part(tmp_path, monkeypatch):
    """Its borders would be looked for in all of it, for each part."""
    monkeypatch.setattr("contexture.data.text.sources._BORDERLESS", 200)
    (tmp_path / "a.txt").write_text("w5 w6.\n" * 500)
    assert not TextFile(tmp_path / "a.txt").can_be_cut("blank_lines")
    (tmp_path / "a.txt").write_text("w5 w6.\n" * 10 + "\n" + "w5 w6.\n" * 500)
    assert TextFile(tmp_path / "a.txt").can_be_cut("blank_lines")


def test_all_documents_of_a_part_are_counted(tmp_path):
    (tmp_path / "a.txt").write_text("w5 w6.\nw7.\n\n" * 3 + "w5.\nw6.")
    job, reported = job_of(DataConfig(path=(str(tmp_path / "a.txt"),)), PIECES, "sentence_pairs"), Tally(1000)
    tokenize_part(job, tmp_path / "parts", 0, 1, reported.add)
    again = Tally(1000)
    tokenize_part(job, tmp_path / "parts", 0, 1, again.add)
    assert reported.documents == again.documents == 4 and reported.tokens == again.tokens > 0
