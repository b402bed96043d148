"""Compressed files are read as what they hold, byte for byte; damaged, cut, or of another kind, they are one line."""

import bz2
import dataclasses
import gzip
import hashlib
import io
import json
import lzma
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contexture.cli import main as cli
from contexture.data.config import DataConfig, TaskConfig
from contexture.data.errors import DataError, FileChanged
from contexture.data.plain_files import check_content, inner_suffix, open_stream
from contexture.data.pretraining.tokenize_corpus import prepare
from contexture.data.tasks.read.read_examples import check_sources, examples
from contexture.data.text.lines import lines
from contexture.data.text.sources import expand, texts, whole_texts
from contexture.data.tokenizers.wordpiece import learn_wordpiece
from contexture.train.run.exit_codes import exit_of
from tests.train.run.test_formats import GOLDEN

TEXT = "The cat sat.\nIt slept.\n\nThe dog ran.\nIt barked, ä 漢.\n"


def zstd(data: bytes) -> bytes:
    return bytes(pyarrow.compress(data, codec="zstd", asbytes=True))


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd,
}
SUFFIXES = st.sampled_from([*COMPRESS])


@settings(max_examples=60, deadline=None)
@given(members=st.lists(st.binary(max_size=300), min_size=1, max_size=4), suffix=SUFFIXES, size=st.integers(1, 99))
def test_the_content_comes_back_whole_in_any_number_of_streams(
    tmp_path_factory: pytest.TempPathFactory, members: list[bytes], suffix: str, size: int
):
    file = tmp_path_factory.getbasetemp() / f"a.txt{suffix}"
    file.write_bytes(b"".join(map(COMPRESS[suffix], members)))
    raw: list[bytes] = []
    with open_stream(file, raw.append) as stream:
        read = b"".join(iter(lambda: stream.read(size), b""))
    assert read == b"".join(members)
    assert b"".join(raw) == file.read_bytes()


@settings(max_examples=150, deadline=None)
@given(suffix=SUFFIXES, data=st.data())
def test_a_cut_archive_is_an_error_and_never_a_shorter_text(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, data: st.DataObject
):
    file = tmp_path_factory.getbasetemp() / f"cut.txt{suffix}"
    one = COMPRESS[suffix](TEXT.encode() * 20)
    cut = data.draw(st.integers(1, 2 * len(one) - 1).filter(lambda cut: cut != len(one)))
    file.write_bytes((one + one)[:cut])
    with pytest.raises(DataError, match=rf"cut\.txt\{suffix}: the \w+ data are damaged or cut off after [\d,]+ bytes"):
        list(texts(expand(file)))


@settings(max_examples=150, deadline=None)
@given(suffix=st.sampled_from([".gz", ".bz2", ".xz"]), data=st.data())
def test_a_damaged_archive_gives_the_whole_text_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, data: st.DataObject
):
    # A frame of zstd has a checksum only where its writer asked for one.
    file = tmp_path_factory.getbasetemp() / f"damaged.txt{suffix}"
    one = COMPRESS[suffix](TEXT.encode() * 20)
    damaged = bytearray(one + one)
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    file.write_bytes(damaged)
    try:
        with open_stream(file) as stream:
            assert stream.read() == TEXT.encode() * 40
    except DataError as error:
        assert str(error).startswith(f"{file}: the ") and "\n" not in str(error)


def test_a_checksum_of_zstd_is_compared(tmp_path: Path):
    # A frame of one raw block, made by hand: magic, a checksum is asked for and the size is in one byte, the size.
    content = b"the cat\n"
    block = (len(content) << 3 | 1).to_bytes(3, "little") + content
    checksum = bytes.fromhex("00000000")
    (tmp_path / "a.txt.zst").write_bytes(b"\x28\xb5\x2f\xfd\x24" + bytes([len(content)]) + block + checksum)
    with pytest.raises(DataError, match="zstd data are damaged .*checksum"):
        list(texts(expand(tmp_path / "a.txt.zst")))


@pytest.mark.parametrize("suffix", COMPRESS)
def test_zeros_and_an_empty_stream_are_no_text(tmp_path: Path, suffix: str):
    file = tmp_path / f"a.txt{suffix}"
    file.write_bytes(bytes(4096))
    with pytest.raises(DataError, match="damaged or cut off after 0 bytes"):
        expand(file)
    file.write_bytes(COMPRESS[suffix](b""))
    assert list(texts(expand(file))) == []


@pytest.mark.parametrize("suffix", COMPRESS)
def test_an_exception_of_the_reader_comes_through(tmp_path: Path, suffix: str):
    file = tmp_path / f"a.txt{suffix}"
    file.write_bytes(COMPRESS[suffix](TEXT.encode()))

    class Stop(BaseException):
        pass

    def stop(raw: bytes) -> None:
        raise Stop

    with pytest.raises(Stop), open_stream(file, stop) as stream:
        stream.read()


TOKENIZER = learn_wordpiece([TEXT], 60, True)


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.json", "a"])
def test_text_is_the_same_compressed_and_not(tmp_path: Path, suffix: str, name: str):
    content = {"a.jsonl": json.dumps({"text": TEXT}), "a.json": json.dumps([{"text": TEXT}])}.get(name, TEXT).encode()
    for folder in ("plain", "packed"):
        (tmp_path / folder).mkdir()
    plain, packed = tmp_path / "plain" / name, tmp_path / "packed" / f"{name}{suffix}"
    plain.write_bytes(content)
    packed.write_bytes(COMPRESS[suffix](content))
    assert inner_suffix(packed) == inner_suffix(plain)
    assert list(texts(expand(packed))) == list(texts(expand(plain)))
    assert list(whole_texts(expand(packed), "files")) == list(whole_texts(expand(plain), "files"))
    shards = [prepare(DataConfig(path=(str(file),)), TOKENIZER, tmp_path / file.name) for file in (plain, packed)]
    assert len(list(shards[0].folder.glob("*.bin"))) > 3
    for file in shards[0].folder.glob("*.bin"):
        assert file.read_bytes() == (shards[1].folder / file.name).read_bytes()
    (source,) = shards[1].index["sources"]
    assert source["size"] == packed.stat().st_size
    assert source["sha256"] == hashlib.sha256(packed.read_bytes()).hexdigest()
    assert not shards[1].sources_changed(DataConfig(path=(str(packed),)))


def test_progress_counts_the_bytes_on_disk(tmp_path: Path):
    file = tmp_path / "a.txt.gz"
    file.write_bytes(gzip.compress("".join(f"w{n} sat.\n" for n in range(50_000)).encode()))
    calls: list[tuple[int, int]] = []
    prepare(DataConfig(path=(str(file),)), TOKENIZER, tmp_path / "s", lambda *call: calls.append(call))
    size = file.stat().st_size
    assert calls[-1] == (size, size) and {total for _, total in calls} == {size}
    assert sorted(calls) == calls and any(0 < done < size for done, _ in calls)


TABLES: dict[str, tuple[str, dict[str, Any]]] = {
    "t.tsv": ("text\tlabel\nthe cat\ta\nthe dog\tb\n", {}),
    "t.csv": ('text,label\n"the, ""cat""\nsat",a\nthe dog,b\n', {}),
    "t.jsonl": ('{"text": "the cat", "label": "a"}\n{"text": "the dog", "label": "b"}\n', {}),
    "t.json": ('[{"text": "the cat", "label": "a"}, {"text": "the dog", "label": "b"}]', {}),
    "t.conll": ("the O\ncat B\n\ndog B\n", {"kind": "tag"}),
    "t.conllu": ("1\tthe\t_\tDET\t_\t_\t0\t_\t_\t_\n\n", {"kind": "tag"}),
}


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_the_same_compressed_and_not(tmp_path: Path, suffix: str, name: str):
    content, task = TABLES[name]
    config = TaskConfig(**{"kind": "classify", **task})
    plain, packed = tmp_path / name, tmp_path / f"{name}{suffix}"
    plain.write_text(content, "utf-8")
    packed.write_bytes(COMPRESS[suffix](content.encode()))
    check_sources([str(packed)], "task.train")
    read = [list(examples(str(file), config, labelled=True)) for file in (plain, packed)]
    assert len(read[0]) > 0
    for one, other in zip(*read, strict=True):
        assert other == dataclasses.replace(one, origin=one.origin.replace(name, packed.name))


def _zip(content: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("t.txt", content)
    return made.getvalue()


def _tar(content: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        entry = tarfile.TarInfo("t.txt")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()


RAW = TEXT.encode()
REFUSED = {
    "t.txt": (gzip.compress(RAW), r"compressed with gzip, which its name does not say; name it \*\.gz"),
    "t.jsonl": (bz2.compress(RAW), r"compressed with bzip2, which its name does not say; name it \*\.bz2"),
    "w.jsonl": (b"PAR1" + bytes(20), r"a binary table, which its name does not say; name it \*\.parquet"),
    "t.txt.gz": (RAW, r"the gzip data are damaged or cut off after 0 bytes"),
    "u.txt.xz": (gzip.compress(RAW), r"the xz data are damaged or cut off after 0 bytes"),
    "u.txt.gz": (gzip.compress(bz2.compress(RAW)), "compressed twice, with bzip2 within; decompress it once"),
    "t.gz": (gzip.compress(_tar(RAW)), r"an archive \(\*\.tar\), which is not read; unpack it"),
    "t.tar.gz": (gzip.compress(_tar(RAW)), r"an archive \(\*\.tar\), which is not read; unpack it"),
    "t.tgz": (gzip.compress(_tar(RAW)), r"an archive \(\*\.tgz\), which is not read; unpack it"),
    "t.tar": (_tar(RAW), r"an archive \(\*\.tar\), which is not read; unpack it"),
    "t.zip": (_zip(RAW), r"an archive \(\*\.zip\), which is not read; unpack it"),
    "v.txt": (_zip(RAW), r"an archive \(\*\.zip\), which is not read; unpack it"),
    "t.txt.zip": (_zip(RAW), r"an archive \(\*\.zip\), which is not read; unpack it"),
    "t.txt.lz4": (b"x", r"an archive \(\*\.lz4\), which is not read; unpack it"),
    "t.parquet.gz": (gzip.compress(b"PAR1"), r"a compressed \*\.parquet; decompress it"),
    "t.parquet": (RAW, r"no \*\.parquet file by its first bytes"),
    "t.arrow": (b"PAR1" + bytes(20), r"no \*\.arrow file by its first bytes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_text_is_refused_by_its_name_and_its_first_bytes(tmp_path: Path, name: str):
    path = tmp_path / name
    content, message = REFUSED[name]
    path.write_bytes(content)
    for refuse in (lambda: expand(path), lambda: check_sources([str(path)], "task.train"), lambda: check_content(path)):
        with pytest.raises(DataError, match=r"/" + name.replace(".", r"\.") + ": " + message) as caught:
            refuse()
        assert "\n" not in str(caught.value)


def test_a_folder_is_checked_file_by_file(tmp_path: Path):
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.txt.xz").write_bytes(lzma.compress(RAW))
    assert [source.name for source in expand(tmp_path)] == ["a.txt", "b.txt.xz"]
    (tmp_path / "c.txt").write_bytes(gzip.compress(RAW))
    with pytest.raises(DataError, match=r"c\.txt: compressed with gzip, which its name does not say"):
        expand(tmp_path)


def test_a_folder_stands_for_the_files_of_c4_and_the_pile(tmp_path: Path):
    rows = b'{"text": "one", "url": "u"}\n{"text": "two", "timestamp": "t"}\n'
    (tmp_path / "c4-train.00000-of-00002.json.gz").write_bytes(gzip.compress(rows))
    (tmp_path / "c4-train.00001-of-00002.json.gz").write_bytes(gzip.compress(rows.replace(b"one", b"three")))
    (tmp_path / "dataset_info.json").write_text("{}")
    sources = expand(tmp_path)
    assert [line for source in sources for _, line in source.documents() if line] == ["one", "two", "three", "two"]


def test_a_file_and_its_compressed_copy_are_the_same_text_twice(tmp_path: Path):
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(RAW))
    for paths in ([tmp_path], [tmp_path / "a.txt.gz", tmp_path / "a.txt"]):
        with pytest.raises(DataError, match=r"data\.path names a\.txt(\.gz)? too, the same text by its name; keep one"):
            expand(paths)


@pytest.mark.parametrize(
    ("name", "known"),
    [("a", True), ("wiki.train.tokens", True), ("wiki.train.raw", True), ("a.TXT", True), ("text.001", True),
     ("news.en-00001-of-00100", True), ("a.txt-00001-of-00100.gz", True), ("readme.md", True),
     ("a.jsnol", False), ("a.xml", False), ("a.html.gz", False), ("a.pdf", False), ("a.npz", False), ("a.yaml", False)],
)  # fmt: skip
def test_text_of_an_unknown_suffix_is_refused_with_the_known_ones(tmp_path: Path, name: str, known: bool):
    path = tmp_path / name
    path.write_bytes(gzip.compress(RAW) if name.endswith(".gz") else RAW)
    if known:
        assert len(list(texts(expand(path)))) == 4
        return
    with pytest.raises(DataError, match=r"is no known kind of text.*; data\.path reads \*\.txt, \*\.jsonl, ") as caught:
        expand(path)
    assert ("did you mean .json" in str(caught.value)) == (name == "a.jsnol")


@pytest.mark.parametrize("command", ["embed {run} --input {file} --to {to}.npz", "generate {run} --input {file}"])
@pytest.mark.parametrize(
    ("name", "message"),
    [("a.jsonl", "*.jsonl is no plain text; give a *.txt with a "), ("a.txt.bz2", "bzip2 data are damaged or cut off")],
)
def test_commands_that_read_lines_refuse_the_rest(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, name: str, message: str
):
    (tmp_path / name).write_text('{"text": "the cat"}\n')
    words = command.format(run=GOLDEN / "gpt", file=tmp_path / name, to=tmp_path / "to").split()
    assert cli.main(words) == 2
    err = capsys.readouterr().err.strip()
    assert message in err and len(err.splitlines()) == 1
    assert [left.name for left in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("change", ["cut", "written on", "written over"])
def test_a_file_that_changes_while_it_is_read_is_no_whole_one(tmp_path: Path, suffix: str, change: str):
    """Else its first half would be read as all of it."""
    text = "".join(f"{os.urandom(40).hex()}\n" for _ in range(5_000))
    file = tmp_path / f"a.tsv{suffix}"
    file.write_bytes(COMPRESS.get(suffix, bytes)(text.encode()))
    read = lines(file)
    next(read)
    size = file.stat().st_size
    if change == "cut":
        os.truncate(file, size // 2)
    elif change == "written on":
        with file.open("ab") as more:
            more.write(COMPRESS.get(suffix, bytes)(b"a\n"))
    else:
        os.utime(file, ns=(0, 1))
    with pytest.raises(FileChanged, match=rf"a\.tsv{suffix}: changed while it was read; start again") as caught:
        list(read)
    assert exit_of(caught.value) == (1, f"FileChanged: {caught.value}")
