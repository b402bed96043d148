"""`contexture clean`, as a person types it: what it prints, refuses and leaves behind."""

import errno
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from contexture.data.cleaning.clean_parts import _PartWriter
from contexture.data.cleaning.join_cleaned import _TextFiles
from tests.helpers.buckets import BUCKET
from tests.helpers.commands import done, json_of, run_command


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("A cat sat on the mat.\n\nA dog.\n\nA cat sat on the mat.\n\nA cat sat.\n")
    return tmp_path / "a.txt"


def test_what_is_printed_is_in_the_report_and_prepare_reads_it(capsys, tmp_path, text):
    done("clean", "--input", text, "--to", tmp_path / "out", "--duplicates", "documents", "near")
    out = capsys.readouterr().out
    assert "duplicate-documents" in out and "near-duplicates" not in out  # what took nothing is left out
    assert f"{tmp_path / 'out' / 'report.json'}" in out
    report = json.loads((tmp_path / "out/report.json").read_text())
    printed = json_of("clean", "--input", text, "--to", tmp_path / "json", "--duplicates", "documents", "near")
    assert [row["rule"] for row in printed["rules"]] == ["duplicate-documents", "near-duplicates"]
    assert printed["rules"][0] == {"rule": "duplicate-documents", "documents": 1, "paragraphs": 0, "bytes": 21}
    assert (
        (printed["documents"], printed["kept_documents"]) == (report["documents"], report["kept_documents"]) == (4, 3)
    )
    assert (tmp_path / "json/report.json").read_bytes() == (tmp_path / "out/report.json").read_bytes()
    # Its text is text to tokenise; the report is none.
    words = ["prepare", "gpt.tiny", "--input", tmp_path / "out", "--to", tmp_path / "shards"]
    assert json_of(*words)["train"]["documents"] == 3


def test_parts_and_their_join_are_the_whole(tmp_path, text):
    options = ["--duplicates", "documents", "--documents", "blank_lines"]
    done("clean", "--input", text, "--to", tmp_path / "whole", *options)
    for part in (1, 0):
        # With a slash at the end, as shells complete a folder: parts lie beside it.
        printed = json_of("clean", "--input", text, "--to", f"{tmp_path / 'out'}/", *options, "--part", f"{part}/2")
    assert printed["part"].endswith("out.parts/part-00000-of-00002")
    done("clean", "--to", tmp_path / "out", "--join")
    for file in ("report.json", "text-00000.jsonl"):
        assert (tmp_path / "out" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--rules c4 --near-threshold 0.5", "near-threshold= is for near-duplicates; give --duplicates near too"),
        ("--duplicates near --near-threshold 0", r"near-threshold=0.0 is not in \(0, 1\]"),
        ("--duplicates near --near-threshold nan", r"near-threshold=nan is not in \(0, 1\]"),
        ("--rules gopher --bad-words a.txt", "bad-words= is for C4's rules; give --rules c4 too"),
        ("--rules c4 --language-column lang", "language-column= is for languages; give --languages en too"),
        ("--rules c4 --decontaminate-ngram 8", "decontaminate-ngram= is for benchmarks; give --decontaminate FILE too"),
        ("--decontaminate a.txt --decontaminate-ngram 0", "decontaminate-ngram=0 is not a positive number of words"),
        ("--rules c4 --workers 0", "workers=0 is not a positive number of processes"),
        ("--rules c4 --per-worker", "per-worker= is for several workers; give --workers 4 too"),
        ("--rules c4 --part 3/3", "part=3/3 is not a part like 0/8 to 7/8"),
        ("--rules c4 --part 0/3 --workers 2", "workers= is for a whole cleaning, not one part"),
        ("--rules c4 --bad-words none.txt", "none.txt: no such file; give one with a word in each line"),
        ("--duplicates line", r"--duplicates is 'line', not one of documents, paragraphs, near"),
        ("--rules gopher", r"a.txt: of 4 documents none is left \(gopher-words took 4\); ask less"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_in_a_line(capsys, tmp_path, text, monkeypatch, words, line):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    code, err = run_command(capsys, "clean", "--input", "a.txt", "--to", "out", *words.split())
    assert code == 2 and "\n" not in err and re.search(line, err), err
    assert sorted(tmp_path.iterdir()) == before


def test_parts_that_are_not_there_are_named(capsys, tmp_path):
    code, err = run_command(capsys, "clean", "--to", tmp_path / "out", "--join")
    assert code == 2 and "out.parts: holds no parts of a preparation; make them with --part 0/N to N-1/N" in err


@pytest.mark.parametrize(("writer", "name"), [(_PartWriter, "_write"), (_TextFiles, "write")])
def test_a_full_disk_is_named_and_leaves_no_half_folder(capsys, tmp_path, text, monkeypatch, writer, name):
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(writer, name, full)
        words = ["clean", "--input", text, "--to", tmp_path / "out", "--duplicates", "documents"]
        code, err = run_command(capsys, *words)
    assert code == 1 and "No space left on device" in err and "Traceback" not in err
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob("**/*.partial"))
    # With room again, the same command does the rest.
    done(*words)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.txt", "out"]


@pytest.mark.long
def test_a_bucket_is_a_folder(bucket_store, tmp_path, text):
    """Parts in it, text from it and what stays, the same bytes as on a disk."""
    folder = f"cleaned-{random.randrange(1 << 30)}"
    place = f"{bucket_store.scheme}://{BUCKET}/{folder}"
    options = ["--duplicates", "documents", "near", "paragraphs"]
    done("clean", "--input", text, "--to", tmp_path / "here", *options)
    done("clean", "--input", text, "--to", f"{place}/whole", *options)
    for part in (1, 0):
        done("clean", "--input", text, "--to", f"{place}/joined", *options, "--part", f"{part}/2")
    done("clean", "--to", f"{place}/joined", "--join")
    for name in ("whole", "joined"):
        for file in ("text-00000.jsonl", "report.json"):
            assert bucket_store.read(f"{folder}/{name}/{file}") == (tmp_path / "here" / file).read_bytes()
    # What was written is text to clean again, in which nothing is left to do.
    words = ["clean", "--input", f"{place}/whole", "--to", tmp_path / "again", *options]
    assert json_of(*words)["kept_documents"] == 3
