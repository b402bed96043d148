"""Text and disks that are at fault while parts are made: one line each, and parts that are done stay as they are."""

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contexture.data.pretraining import text_parts
from contexture.data.tokenizers.wordpiece import WordPiece
from tests.data.pretraining.test_parts import content
from tests.helpers.commands import done, run_command
from tests.helpers.slow_pairs import vocabulary

TEXT = "w5 w6.\nw7 w8.\n\n" * 40


def cut_gzip(folder: Path) -> str:
    file = folder / "b.txt.gz"
    file.write_bytes(gzip.compress(TEXT.encode())[:-12])
    return f"{file}: the gzip data are damaged or cut off"


def no_column(folder: Path) -> str:
    file = folder / "b.parquet"
    pq.write_table(pa.table({"body": ["w5 w6."]}), file)
    return f"{file}: no column 'text'; the columns are 'body'; rename the text's, or name it (--data.text-column)"


def other_encoding(folder: Path) -> str:
    file = folder / "b.txt"
    file.write_bytes(TEXT.encode() + "naïve\n".encode("latin-1"))
    return f"{file}:121: not UTF-8 (byte 0xef at column 3); save the file as UTF-8"


def two_byte_encoding(folder: Path) -> str:
    file = folder / "b.txt"
    file.write_text(TEXT, "utf-16")
    return f"{file}: UTF-16 by its first bytes, and text is UTF-8; save it so, or: iconv -f UTF-16"


@pytest.mark.parametrize("fault", [cut_gzip, no_column, other_encoding, two_byte_encoding])
@pytest.mark.parametrize("how", [("--part", "1/2"), ("--workers", "2"), ()])
def test_text_at_fault_is_one_line_and_harms_no_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, fault, how: tuple[str, ...]
):
    monkeypatch.setattr(text_parts, "PIECE", 600)
    (tmp_path / "a.txt").write_text(TEXT)
    WordPiece(vocabulary(), lowercase=True).save(tmp_path / "v")
    words = [
        "prepare",
        "bert.tiny",
        "--input",
        tmp_path / "a.txt",
        "--tokenizer",
        tmp_path / "v",
        "--to",
        tmp_path / "s",
    ]
    done(*words, "--part", "0/2")
    before = content(tmp_path / "s.parts")
    line = fault(tmp_path)
    added = next(file for file in tmp_path.iterdir() if file.name.startswith("b."))
    code, printed = run_command(capsys, *words[:4], added, *words[4:], *how)
    assert code == 2 and line in printed and printed.count("\n") == 0, printed
    assert content(tmp_path / "s.parts") == before and not (tmp_path / "s").exists()
    # Without the file at fault the work goes on with the part that is there.
    done(*words, "--part", "1/2")
    done("prepare", "bert.tiny", "--to", tmp_path / "s", "--join")


def test_a_full_disk_in_a_part_is_one_line_and_harms_no_other(
    tmp_path: Path, small_disk: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
):
    disk = small_disk("size=3m")
    (tmp_path / "a.txt").write_text(TEXT * 400)
    WordPiece(vocabulary(), lowercase=True).save(tmp_path / "v")
    words = ["prepare", "bert.tiny", "--input", tmp_path / "a.txt", "--tokenizer", tmp_path / "v"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_parts, "PIECE", 60_000)
        done(*words, "--to", disk / "s", "--part", "0/40")
        before = content(disk / "s.parts")
        (disk / "ballast").write_bytes(bytes(shutil.disk_usage(disk).free - 8192))
        code, printed = run_command(capsys, *words, "--to", disk / "s", "--part", "1/40")
        assert code == 1 and "No space left on device" in printed and printed.count("\n") == 0
        assert content(disk / "s.parts") == before
        # With room again the same command makes it.
        (disk / "ballast").unlink()
        done(*words, "--to", disk / "s", "--part", "1/40")
