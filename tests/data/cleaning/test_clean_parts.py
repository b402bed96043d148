"""Text that is cleaned in parts is that which is cleaned as a whole, and what goes is counted to the byte."""

import gzip
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contexture.data.cleaning import clean_parts, join_cleaned, repeated
from contexture.data.cleaning.clean_parts import Cleaning, clean, clean_part
from contexture.data.cleaning.config import CleanConfig, RuleSet
from contexture.data.cleaning.join_cleaned import join
from contexture.data.cleaning.rules import C4_RULES, GOPHER_RULES, ORDER
from contexture.data.errors import DataError
from contexture.data.pretraining import text_parts
from tests.conftest import ROOT

LINES = [
    "A cat sat on the mat.",
    "A dog sat on it.",
    "He ran and he ran.",
    "Yes.",
    "no end here",
    "{",
    "Ça va bien ici, oui.",
    " ",
]
TEXT = st.lists(st.lists(st.sampled_from(LINES), min_size=1, max_size=5).map("\n".join), min_size=1, max_size=12)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_parts, "PIECE", 60)


def seen(read: int, documents: int, tokens: int) -> None:
    """Takes what was done."""


def content(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("text-*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]


def in_parts(config: CleanConfig, folder: Path, count: int, order: Sequence[int]) -> Path:
    """Cleans parts in an order, in which some may be named twice, and joins them."""
    job = Cleaning(config)
    for part in order:
        clean_part(job, folder / "parts", part, count, seen)
    join(folder / "parts", folder / "joined")
    return folder / "joined"


def write(folder: Path, texts: Sequence[Sequence[str]], kinds: Sequence[str]) -> tuple[str, ...]:
    for number, (documents, kind) in enumerate(zip(texts, kinds, strict=False)):
        rows = "".join(json.dumps({"text": text, "id": f"{number}-{at}"}) + "\n" for at, text in enumerate(documents))
        raw = (rows if kind == ".jsonl" else "\n\n".join(documents)).encode()
        (folder / f"{number}{kind}").write_bytes(gzip.compress(raw) if kind.endswith("gz") else raw)
    return tuple(str(path) for path in sorted(folder.iterdir()))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(TEXT, min_size=1, max_size=3),
    kinds=st.lists(st.sampled_from([".txt", ".jsonl", ".txt.gz"]), min_size=3, max_size=3),
    rules=st.sampled_from([(), ("c4",)]),
    duplicates=st.sets(st.sampled_from(["documents", "paragraphs", "near"]), min_size=1),
    how=st.sampled_from(["blank_lines", "files"]),
    counts=st.tuples(st.integers(2, 12), st.integers(0, 10**6)),
)
def test_joined_parts_are_the_cleaning_of_the_whole(tmp_path_factory, texts, kinds, rules, duplicates, how, counts):
    folder = tmp_path_factory.mktemp("clean")
    (folder / "text").mkdir()
    paths = write(folder / "text", texts, kinds)
    config = CleanConfig(input=paths, rules=rules, duplicates=tuple(duplicates), documents=how)
    count, seed = counts
    order = [*range(count), *random.Random(seed).sample(range(count), 2)]
    random.Random(seed).shuffle(order)
    try:
        report = clean(config, folder / "whole")
    except DataError as error:
        with pytest.raises(DataError, match="of .* documents? none is left|no document in the text"):
            in_parts(config, folder, count, order)
        assert "left" in str(error) or "no document" in str(error)
        return
    assert content(in_parts(config, folder, count, order)) == content(folder / "whole")
    # To the byte, and to the document.
    taken = report["rules"].values()
    assert report["bytes"] == report["kept_bytes"] + sum(rule["bytes"] for rule in taken)
    assert report["documents"] == report["kept_documents"] + sum(rule["documents"] for rule in taken)
    rows = rows_of(folder / "whole")
    assert len(rows) == report["kept_documents"]
    assert sum(len(row["text"].encode()) for row in rows) == report["kept_bytes"]
    # Each row is where it says.
    assert [(row["source"], row["number"]) for row in rows] == sorted((row["source"], row["number"]) for row in rows)
    for row in rows:
        place, kind = int(row["source"][0]), row["source"][1:]
        if kind == ".jsonl":
            # Rows without text are no documents.
            texts_of_file = [at for at, text in enumerate(texts[place]) if text.strip()]
            assert row["id"] == f"{place}-{texts_of_file[row['number'] - 1]}"


def first_ones(documents: Sequence[str], duplicates: Sequence[str]) -> list[str]:
    """Documents without exact duplicates, in the plainest way."""
    if "documents" in duplicates:
        documents = list(dict.fromkeys(documents))
    known: list[str] = []
    left = []
    for document in documents:
        lines = []
        for line in document.split("\n"):
            if "paragraphs" not in duplicates or not line.strip() or line.strip() not in known:
                lines.append(line)
            known += [line.strip()] if line.strip() else []
        left.append("\n".join(lines))
    return [document for document in left if document.strip()]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    documents=TEXT,
    duplicates=st.sampled_from([("documents",), ("paragraphs",), ("documents", "paragraphs")]),
    most=st.sampled_from([3, 1 << 24]),
)
def test_exact_duplicates_are_those_of_brute_force(tmp_path_factory, documents, duplicates, most):
    folder = tmp_path_factory.mktemp("exact")
    documents = [document for document in documents if document.strip()] or ["A cat."]
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    with pytest.MonkeyPatch.context() as patch:
        # So many paragraphs at once.
        patch.setattr(repeated, "MOST", most)
        clean(CleanConfig(input=(str(folder / "a.jsonl"),), duplicates=duplicates), folder / "out")
    assert [row["text"] for row in rows_of(folder / "out")] == first_ones(documents, duplicates)


def test_examples_name_what_went_and_what_it_doubles(tmp_path):
    (tmp_path / "a.txt").write_text("One line.\nTwo.\n\nOne line.\nTwo.\n\nThree.\nTwo.")
    (tmp_path / "b.txt").write_text("One line.\nTwo.\n\nFour.")
    files = (str(tmp_path / "a.txt"), str(tmp_path / "b.txt"))
    report = clean(CleanConfig(input=files, duplicates=("documents", "paragraphs")), tmp_path / "out")
    first = {"source": "a.txt", "number": 1}
    whole = {"text": "One line. Two.", "doubles": first}
    documents, paragraphs = (report["rules"][f"duplicate-{kind}"] for kind in ("documents", "paragraphs"))
    assert documents["examples"] == [
        {"source": "a.txt", "number": 2, **whole},
        {"source": "b.txt", "number": 1, **whole},
    ]
    assert paragraphs["examples"] == [{"source": "a.txt", "number": 3, "text": "Two.", "doubles": first}]
    assert (documents["documents"], paragraphs["paragraphs"]) == (2, 1)
    assert report["sources"] == [
        {"name": "a.txt", "size": 43, "documents": 3},
        {"name": "b.txt", "size": 21, "documents": 2},
    ]
    assert [(row["source"], row["number"], row["text"]) for row in rows_of(tmp_path / "out")] == [
        ("a.txt", 1, "One line.\nTwo."), ("a.txt", 3, "Three."), ("b.txt", 2, "Four.")
    ]  # fmt: skip


def test_the_first_rule_that_refuses_is_counted(tmp_path):
    """In an order that is written down, whatever the order of the options."""
    rows = {"Ein { Satz.": "de", "A { page.": "en", "lorem ipsum {": "en", "Some page.": "en", "Another page.": "en"}
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"text": text, "lang": language}) + "\n" for text, language in rows.items())
    )
    orders: list[tuple[RuleSet, ...]] = [("gopher", "c4"), ("c4", "gopher")]
    for rules in orders:
        config = CleanConfig(
            input=(str(tmp_path / "a.jsonl"),), rules=rules, languages=("en",), language_column="lang",
            duplicates=("documents",),
        )  # fmt: skip
        with pytest.raises(
            DataError, match=r"a.jsonl: of 5 documents none is left \(c4-sentences took 2, language took 1"
        ):
            clean(config, tmp_path / "out")
    assert ORDER[0] == "language" and ORDER[1:-4] == (*C4_RULES, *GOPHER_RULES)
    assert ORDER[-4:] == ("decontaminate", "duplicate-documents", "near-duplicates", "duplicate-paragraphs")


def test_text_is_cut_into_files_of_a_size(tmp_path, monkeypatch):
    monkeypatch.setattr(join_cleaned, "FILE_BYTES", 200)
    (tmp_path / "a.txt").write_text("\n\n".join(f"Document {number}." for number in range(30)))
    clean(CleanConfig(input=(str(tmp_path / "a.txt"),), duplicates=("documents",)), tmp_path / "out")
    files = sorted((tmp_path / "out").glob("*.jsonl"))
    assert len(files) > 5 and all(150 < file.stat().st_size < 300 for file in files[:-1])
    assert [row["number"] for row in rows_of(tmp_path / "out")] == list(range(1, 31))


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """Three parts of a text."""
    (tmp_path / "a.txt").write_text("".join(f"A cat {number}.\n\nA dog.\n\n" for number in range(20)))
    job = Cleaning(CleanConfig(input=(str(tmp_path / "a.txt"),), duplicates=("documents", "paragraphs", "near")))
    for part in range(3):
        clean_part(job, tmp_path / "parts", part, 3, seen)
    return tmp_path / "parts"


def refused(parts: Path, line: str) -> None:
    with pytest.raises(DataError, match=line):
        join(parts, parts.parent / "joined")
    assert not [each for each in parts.parent.iterdir() if "joined" in each.name]


def test_a_part_that_is_missing_or_of_other_settings_is_named(parts, tmp_path):
    shutil.rmtree(parts / "part-00001-of-00003")
    refused(parts, r"parts: part 1 of 3 is missing; make it with --part 1/3$")
    others = {
        "duplicates": (("documents",), r"duplicates \['documents'\], not \['documents', 'near', 'paragraphs'\]"),
        "rules": (("c4",), r"rules \['c4'\], not \[\]"),
        "near_threshold": (0.5, "near threshold 0.5, not 0.8"),
        "documents": ("files", "documents files, not blank_lines"),
    }
    usual: dict[str, Any] = {"input": (str(tmp_path / "a.txt"),), "duplicates": ("documents", "paragraphs", "near")}
    for name, (value, line) in others.items():
        job = Cleaning(CleanConfig(**{**usual, name: value}))
        clean_part(job, parts, 1, 3, seen)
        refused(parts, rf"part-00001-of-00003: a part of another preparation \({line}\); delete")
        with pytest.raises(DataError, match="a part of another preparation"):
            clean_part(Cleaning(CleanConfig(**usual)), parts, 1, 3, seen)
        shutil.rmtree(parts / "part-00001-of-00003")


NAMES = ["text.jsonl", "ends.bin", "documents.bin", "paragraphs.bin", "counts.bin", "signatures.bin", "part.json"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("harm", ["flipped", "cut", "longer", "missing"])
def test_a_damaged_part_is_named(parts, name, harm):
    file = parts / "part-00001-of-00003" / name
    raw = bytearray(file.read_bytes())
    if harm == "flipped":
        raw[len(raw) // 2] ^= 1
    if harm == "missing":
        file.unlink()
    elif name == "part.json":
        file.write_bytes(raw[:-5])
    else:
        file.write_bytes({"flipped": raw, "cut": raw[:-1], "longer": raw + b"x"}[harm])
    refused(parts, rf"part-00001-of-00003/{name}: (damaged|not the description of a part|cannot be read)")


def test_a_compressed_file_that_is_cut_off_is_named(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(random.Random(0).randbytes(9000).hex().encode())[:-2000])
    with pytest.raises(DataError, match=r"a.txt.gz: the gzip data are damaged or cut off after [\d,]+ bytes"):
        clean(CleanConfig(input=(str(tmp_path / "a.txt.gz"),), rules=("gopher",)), tmp_path / "out")
    assert [each.name for each in tmp_path.iterdir()] == ["a.txt.gz"]


def test_a_fault_in_a_later_part_names_its_line(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "A cat."}\n' * 30 + '{"txt": "A cat."}\n' + '{"text": "A cat."}\n' * 30)
    with pytest.raises(DataError, match=r"a.jsonl:31: no \"text\" that is a string"):
        clean(CleanConfig(input=(str(tmp_path / "a.jsonl"),), duplicates=("documents",)), tmp_path / "out")


_KILLED = """
import sys, time
from pathlib import Path
from contexture.data.cleaning.clean_parts import clean
from contexture.data.cleaning.config import CleanConfig, RuleSet
from contexture.data.pretraining import text_parts
text_parts.PIECE = 60
def slowly(done, total):
    time.sleep(0.02)
clean(CleanConfig(input=(sys.argv[1],), duplicates=("documents", "near")), Path(sys.argv[2]), slowly)
"""


def test_a_killed_cleaning_goes_on_with_the_parts_that_are_done(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("".join(f"A cat {number % 90}.\nAnd a dog.\n\n" for number in range(300)))
    process = subprocess.Popen(
        [sys.executable, "-c", _KILLED, str(tmp_path / "a.txt"), str(tmp_path / "out")], cwd=ROOT
    )
    deadline = time.monotonic() + 60
    while len(done := list(tmp_path.glob(".out.parts-*/part-*"))) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(done) >= 5 and not (tmp_path / "out").exists()
    made: list[int] = []
    written = clean_parts._PartWriter.finish
    monkeypatch.setattr(
        clean_parts._PartWriter, "finish", lambda self, part, count: (made.append(part), written(self, part, count))
    )
    config = CleanConfig(input=(str(tmp_path / "a.txt"),), duplicates=("documents", "near"))
    clean(config, tmp_path / "out")
    assert len(made) < 64 - 4 and 0 not in made
    clean(config, tmp_path / "again")
    assert content(tmp_path / "out") == content(tmp_path / "again")
    # Nothing else is left.
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.txt", "again", "out"]


@pytest.mark.long
def test_workers_change_nothing(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"A cat {number % 90}.\nAnd a dog.\n\n" for number in range(300)))
    config = CleanConfig(input=(str(tmp_path / "a.txt"),), languages=("en",), duplicates=("documents", "near"))
    clean(config, tmp_path / "one")
    clean(config, tmp_path / "three", workers=3)
    assert content(tmp_path / "one") == content(tmp_path / "three")
