"""Only plain files are opened, and only text is read as text: everything else is one line, at once."""

import os
import socket
from pathlib import Path

import pytest

from contexture.cli import main as cli
from contexture.data.config import DataConfig
from contexture.data.errors import DataError
from contexture.data.plain_files import check_content, open_plain
from contexture.data.tokenizers.registry import load_tokenizer
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import with_absolute_paths
from tests.train.run.test_formats import GOLDEN

TEXT = "the cat sat\n\nthe dog ran\n"


def _refused(capsys, *words: object) -> str:
    """The line of a command that is refused."""
    assert cli.main([str(word) for word in words]) == 2
    err = capsys.readouterr().err.strip()
    assert len(err.splitlines()) == 1, err
    return err


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("pretrain bert.tiny --dir {d}/run --data.path {f}", "f.txt"),
        ("pretrain bert.tiny --dir {d}/run --data.path {d}/text.txt --data.dev {f}", "f.txt"),
        ("pretrain bert.tiny --dir {d}/run --data.path {d}/text.txt --data.tokenizer {f}", "f.txt"),
        ("tokenizer wordpiece --input {f} --to {d}/to", "f.txt"),
        ("prepare bert.tiny --input {f} --to {d}/to", "f.jsonl"),
        ("prepare bert.tiny --input {d}/text.txt --tokenizer {f} --to {d}/to", "f.model"),
        ("finetune {golden} --task.kind classify --task.train {f} --dir {d}/run", "f.tsv"),
        ("evaluate {d}/folder", "folder/run.json"),
        ("show {d}/folder", "folder/run.json"),
        ("embed {golden} --input {f} --to {d}/f.npz", "f.txt"),
        ("generate {golden} --input {f}", "f.txt"),
        ("import hf {d}/folder --to {d}/to", "folder/config.json"),
        ("import bert-tf {d}/folder --to {d}/to", "folder/bert_config.json"),
        ("import gpt2-tf {d}/folder --to {d}/to", "folder/hparams.json"),
        ("import gpt1-npy {d}/folder --to {d}/to", "folder/params_shapes.json"),
        ("import bilm {d}/folder --to {d}/to", "folder/my-options.json"),
    ],
)
def test_a_pipe_in_the_place_of_a_file_is_one_line_and_hangs_nothing(capsys, tmp_path, words, name):
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / name)
    golden = GOLDEN / "bert_3_steps"
    line = _refused(capsys, *words.format(f=tmp_path / name, d=tmp_path, golden=golden).split())
    assert str(tmp_path) in line and "unexpected" not in line


@pytest.mark.parametrize(
    "words",
    [
        "pretrain bert.tiny --dir {d}/run --data.path abfs://texts/a.txt",
        "pretrain bert.tiny --dir {d}/run --data.path {d}/text.txt --data.dev hdfs://texts/a.txt",
        "pretrain bert.tiny --dir {d}/run --data.path {d}/text.txt --data.tokenizer abfs://texts/vocab.txt",
        "pretrain bert.tiny --dir {d}/run --config abfs://texts/run.json",
        "tokenizer wordpiece --input abfs://texts/a.txt --to {d}/to",
        "finetune {golden} --task.kind classify --task.train hdfs://rows/a.tsv --dir {d}/run",
        "finetune {golden} --task.kind classify --task.train {d}/a.tsv --task.dev abfs://rows --dir {d}/run",
        "predict {task} --input abfs://rows/a.tsv --to {d}/to",
        "evaluate {task} --task.dev az://rows/a.tsv",
        "embed {golden} --input abfs://texts/a.txt --to {d}/f.npz",
        "score {golden} --input hdfs://texts/a.txt",
        "probe {golden} --task pos --train abfs://rows/a.conllu --dev {d}/a.tsv --to {d}/to",
        "senses {golden} --word bank --input abfs://texts/a.txt",
        "senses {golden} --word cat --input {d}/text.txt --static abfs://vectors/a.vec",
        *(f"import {kind} abfs://models/a --to {{d}}/to" for kind in ("hf", "bert-tf", "gpt1-npy", "bilm", "vectors")),
    ],
)
def test_an_address_of_no_bucket_is_named_as_one(capsys, tmp_path, words):
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "a.tsv").write_text("text\tlabel\na\tgood\nb\tbad\n")
    places = {"d": tmp_path, "golden": GOLDEN / "bert_3_steps", "task": GOLDEN / "bert_classify_3"}
    line = _refused(capsys, *words.format(**places).split())
    assert "://" in line and "only gs://BUCKET/… and s3://BUCKET/… are supported; copy the files" in line
    assert not (tmp_path / "run" / "data").exists() and not (tmp_path / "to").exists()


def test_an_address_is_made_no_path_of_this_folder():
    run = Run(data=DataConfig(path=("abfs://texts/a.txt", "a.txt")))
    assert with_absolute_paths(run).data.path == ("abfs://texts/a.txt", os.path.abspath("a.txt"))


def test_only_plain_files_are_opened_and_links_are_followed(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "link").symlink_to("text.txt")
    with open_plain(tmp_path / "link") as file:
        assert file.read() == TEXT.encode()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to_pipe").symlink_to("pipe")
    for path, what in (("pipe", "a named pipe"), ("to_pipe", "a named pipe"), (".", "a folder"), ("/dev/null", "dev")):
        with pytest.raises(DataError, match=what):
            open_plain(tmp_path / path)
    with socket.socket(socket.AF_UNIX) as one, pytest.raises(OSError):
        os.chdir(tmp_path)
        one.bind("socket")
        open_plain(tmp_path / "socket")


@pytest.mark.parametrize(
    ("name", "kind", "task"),
    [
        ("t.tsv", "a table of examples", "classify"),
        ("t.CSV", "a table of examples", "classify"),
        ("t.conll", "words with tags", "tag"),
        ("t.conllu", "words with tags", "tag"),
    ],
)
def test_a_table_in_the_place_of_text_is_refused(capsys, tmp_path, name, kind, task):
    path = tmp_path / name
    path.write_text("text\tlabel\nthe cat\ta\n")
    for words in (
        f"pretrain bert.tiny --dir {tmp_path}/run --data.path {path}",
        f"tokenizer wordpiece --input {path} --to {tmp_path}/to",
        f"prepare bert.tiny --input {path} --to {tmp_path}/to",
    ):
        line = _refused(capsys, *words.split())
        assert f"{name}: {kind}, and " in line and f"--task.kind {task} --task.train {path}" in line, line
    assert [left.name for left in tmp_path.iterdir()] == [name]


def test_text_that_a_vocabulary_lacks_is_said_when_it_is_prepared(capsys, tmp_path):
    sentences = "".join(f"the cat sees the {word}.\nit runs.\n\n" for word in ["dog", "☃", "☃", "bird"])
    (tmp_path / "t.txt").write_text(sentences)
    pieces = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat sees dog bird it runs .".split()
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    words = f"prepare bert.tiny --input {tmp_path}/t.txt --tokenizer {tmp_path}/vocab.txt --to {tmp_path}/to"
    assert cli.main(words.split()) == 0
    out, err = capsys.readouterr()
    assert "of the tokens are [UNK], unknown to the vocabulary, most often '☃' (2); give another vocab" in err
    assert "unknown" in out


def test_a_vocabulary_that_is_a_pipe_is_refused(tmp_path: Path):
    os.mkfifo(tmp_path / "v.txt")
    with pytest.raises(DataError, match="a named pipe, not a plain file"):
        load_tokenizer(tmp_path / "v.txt")


@pytest.mark.parametrize(
    ("encoding", "name"),
    [("utf-16", "UTF-16"), ("utf-16-le", "UTF-16LE"), ("utf-16-be", "UTF-16BE"), ("utf-32", "UTF-32")],
)
@pytest.mark.parametrize("file", ["a.txt", "a.tsv", "a.jsonl", "a.conll"])
def test_text_in_another_encoding_is_named_with_what_mends_it(tmp_path: Path, encoding: str, name: str, file: str):
    (tmp_path / file).write_bytes("text\tlabel\nthe cat\tx\n".encode(encoding))
    with pytest.raises(
        DataError, match=rf"{file}: {name} by its first bytes.*: iconv -f {name} -t UTF-8 .*{file} > NEW"
    ):
        check_content(tmp_path / file)


@pytest.mark.parametrize("content", [b"", b"a", bytes(64), b"a\0b c d e f", "漢字\n".encode(), b"\xff\n"])
def test_other_text_is_not_taken_for_it(tmp_path: Path, content: bytes):
    (tmp_path / "a.txt").write_bytes(content)
    check_content(tmp_path / "a.txt")
