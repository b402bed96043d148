"""What may go wrong around a run, row by row: docs/faults.md is the table. Each fault ends in the same run, or in one
line, and nothing that was good is lost."""

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from contexture.cli import main as cli
from tests.helpers.commands import run_command
from tests.helpers.parity_rule import assert_close
from tests.train.run.test_resume import assert_same_run, losses, parameters, recorded

ROOT = Path(__file__).parents[3]
ERRORS = ("ConfigError: ", "DataError: ", "CheckpointError: ", "MemoryError: ", "OSError: ")
pytestmark = pytest.mark.long


def assert_one_line(code: int, stderr: str) -> None:
    """An honest error: its exit code, its kind, no traceback."""
    last = stderr.strip().splitlines()[-1]
    assert code in (1, 2) and last.startswith(ERRORS) and "Traceback" not in stderr, (code, stderr[-2000:])
    assert "unexpected error" not in last, last


def content(folder: Path, *names: str) -> Counter[str]:
    """The digests of the files below these entries of a folder."""
    files = [file for name in names for file in (folder / name).rglob("*") if file.is_file() and not file.is_symlink()]
    return Counter(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)


# ------------------------------------------------------------------------------------------------------- damaged files


def truncate(file: Path, _: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])


def flip(file: Path, _: Path) -> None:
    data = bytearray(file.read_bytes())
    if data:
        data[len(data) // 2] ^= 0x10
    file.write_bytes(bytes(data))


def replace_by_folder(file: Path, _: Path) -> None:
    file.unlink()
    file.mkdir()


def replace_by_dangling_link(file: Path, _: Path) -> None:
    file.unlink()
    file.symlink_to(file.parent / "nowhere")


def replace_by_older(file: Path, run: Path) -> None:
    """What the same file of the checkpoint before holds, or the first two thirds of its lines."""
    older = Path(str(file).replace("/checkpoints/40/", "/checkpoints/30/"))
    if older != file and older.is_file():
        file.write_bytes(older.read_bytes())
    else:
        lines = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(b"".join(lines[: len(lines) * 2 // 3]))


HARMS: dict[str, Callable[[Path, Path], None]] = {
    "removed": lambda file, _: file.unlink(),
    "truncated": truncate,
    "flipped": flip,
    "a folder in its place": replace_by_folder,
    "a dangling link in its place": replace_by_dangling_link,
    "an older copy": replace_by_older,
}
FILES = {
    "run.json": "run.json",
    "metrics": "metrics.jsonl",
    "tokenizer": "tokenizer/*",
    "data": "data/**/*",
    "checkpoint": "checkpoints/40/**/*",
    "others": "[lt]*/*",
}


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("kind", FILES)
def test_a_harmed_file_is_the_same_run_or_one_line(one_device, tiny_words, tiny_run, tmp_path, capsys, kind, harm):
    """`others`: the lock, the events of TensorBoard and the picture of the loss, none of which a run needs."""
    expected = [name for name in ("lock", "loss.png") if kind == "others"]
    files = [
        *(file.relative_to(tiny_run) for file in tiny_run.glob(FILES[kind]) if file.is_file()),
        *map(Path, expected),
    ]
    assert files
    final = parameters(tiny_run)
    for file in files:
        folder = tmp_path / "run"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tiny_run, folder)
        good = content(folder, "checkpoints", "data", "tokenizer")
        good[hashlib.sha256((folder / file).read_bytes()).hexdigest()] -= 1
        HARMS[harm](folder / file, folder)
        code, err = run_command(capsys, *tiny_words, "--dir", folder)
        if code:
            assert_one_line(code, err)
        else:
            same = zip(parameters(folder), final, strict=True)
            assert kind == "metrics" or recorded(folder) == 40, (file, err)
            for (
                got,
                expected,
            ) in same:  # the same program on one device, of another process: see test_unkillable for bits
                assert_close(got, expected, rtol=1e-4, atol=1e-5)
        assert not +(good - content(folder, ".")), (file, err)


# --------------------------------------------------------------------------------------------------------------- disks


@pytest.mark.parametrize("kib", [4, 12, 40, 64, 96, 300, 600, 900, 1200])
def test_a_full_disk_is_one_line_and_the_run_resumes_as_the_same(door, tiny_words, tiny_run, small_disk, kib):
    """At these sizes a vocabulary, shards, run.json, the first or a later checkpoint, events or the picture find no
    place."""
    folder = small_disk(f"size={kib}k") / "run"
    done = door(*tiny_words, "--dir", folder)
    if done.returncode:
        assert_one_line(done.returncode, done.stderr)
    small_disk("remount,size=64m")
    done = door(*tiny_words, "--dir", folder)
    assert done.returncode == 0, done.stderr
    assert_same_run(folder, tiny_run)


def test_a_full_disk_ends_other_commands_with_one_line_and_no_file(tiny_run, small_disk, text_folder, capsys):
    place = small_disk("size=8k")
    commands = {
        "embed": ["embed", tiny_run, "--input", text_folder / "text0.txt", "--to", place / "v.npz"],
        "export": ["export", tiny_run, "hf", "--to", place / "hf"],
        "prepare": ["prepare", "bert.tiny", "--input", text_folder, "--to", place / "shards"],
        "tokenizer": ["tokenizer", "byte-bpe", "--input", text_folder, "--vocab-size", "3000", "--to", place / "v"],
    }
    for name, words in commands.items():
        code, err = run_command(capsys, *words)
        assert_one_line(code, err)
        assert list(place.iterdir()) == [], (name, list(place.iterdir()))


def test_a_read_only_disk_is_one_line_and_takes_nothing(tiny_words, tiny_run, small_disk, capsys):
    place = small_disk("size=64m")
    shutil.copytree(tiny_run, place / "run")
    small_disk("remount,ro")
    before = content(place, ".")
    for words in ([*tiny_words, "--dir", place / "run"], [*tiny_words, "--dir", place / "new"]):
        code, err = run_command(capsys, *words)
        assert_one_line(code, err)
    assert content(place, ".") == before
    assert cli.main(["evaluate", str(place / "run")]) == 0


# ------------------------------------------------------------------------------------------------------------ processes


def test_a_process_that_is_stopped_and_continued_is_the_same_run(door, tiny_words, tiny_run, tmp_path):
    folder = tmp_path / "run"
    process = door(*tiny_words, "--dir", folder, wait=False)
    try:
        for goal in (1, 12, 25):
            while recorded(folder) < goal and process.poll() is None:
                time.sleep(0.01)
            process.send_signal(signal.SIGSTOP)
            time.sleep(1)
            process.send_signal(signal.SIGCONT)
        _, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, stderr
    assert_same_run(folder, tiny_run)


def test_a_second_run_in_one_folder_is_refused_and_the_first_goes_on(door, tiny_words, tiny_run, tmp_path, capsys):
    folder = tmp_path / "run"
    process = door(*tiny_words, "--dir", folder, wait=False)
    try:
        while not recorded(folder) and process.poll() is None:
            time.sleep(0.01)
        code, err = run_command(capsys, *tiny_words, "--dir", folder)
        assert code == 2 and f"is in use by process {process.pid} on" in err, err
        _, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, stderr
    assert_same_run(folder, tiny_run)


def test_a_run_that_was_moved_between_two_starts_is_the_same_run(door, tiny_words, tiny_run, tmp_path):
    shutil.copytree(tiny_run, tmp_path / "a")
    shutil.rmtree(tmp_path / "a" / "checkpoints" / "40")
    shutil.move(tmp_path / "a", tmp_path / "b")
    done = door(*tiny_words, "--dir", tmp_path / "b")
    assert done.returncode == 0 and "resuming from step 30" in done.stderr, done.stderr
    assert_same_run(tmp_path / "b", tiny_run)
    assert not (tmp_path / "a").exists()


def test_a_clock_that_is_set_back_changes_nothing(one_device, tiny_words, tmp_path, monkeypatch, capsys):
    """Between two starts, by a day, and files that are newer than now."""
    whole, folder = tmp_path / "whole", tmp_path / "run"
    assert run_command(capsys, *tiny_words, "--dir", whole)[0] == 0
    shutil.copytree(whole, folder)
    shutil.rmtree(folder / "checkpoints" / "40")
    process_time = time.time
    text = Path(tiny_words[tiny_words.index("--data.path") + 1])
    for file in (*text.iterdir(), *(file for file in folder.rglob("*") if file.is_file())):
        os.utime(file, (process_time() + 86400, process_time() + 86400))
    monkeypatch.setattr(time, "time", lambda: process_time() - 86400)
    code, err = run_command(capsys, *tiny_words, "--dir", folder)
    assert code == 0 and "resuming from step 30" in err, err
    assert losses(folder) == losses(whole)


@pytest.mark.parametrize("mib", [64, 256, 512, 1024, 2048, 4096])
def test_too_little_memory_is_one_line_where_it_can_be_caught(environment, tiny_words, tmp_path, mib):
    """`ulimit -v`: Python says so in one line, or native code ends the process; it neither hangs nor damages a run."""
    code, stderr = limited(f"ulimit -v {mib * 1024}", environment, tiny_words, tmp_path / "run")
    if code > 0:
        last = stderr.strip().splitlines()[-1]
        assert code in (1, 2) and "Traceback" not in stderr and "memory" in last, stderr[-2000:]


@pytest.mark.parametrize("files", [16, 24, 32, 64])
def test_too_few_file_descriptors_are_one_line(environment, tiny_words, tmp_path, files):
    code, stderr = limited(f"ulimit -n {files}", environment, tiny_words, tmp_path / "run")
    if code:
        last = stderr.strip().splitlines()[-1]
        assert code in (1, 2) and "Traceback" not in stderr and "too many open files" in last.lower(), stderr[-2000:]


def limited(limit: str, environment, words: list[str], folder: Path) -> tuple[int, str]:
    command = f"{limit}; exec {sys.executable} -m contexture {' '.join(words)} --dir {folder}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=200, env=environment(1))
    return done.returncode, done.stderr


def test_every_row_of_the_table_names_a_test_that_there_is():
    table = (ROOT / "docs" / "faults.md").read_text("utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", table)
    assert len(named) >= 20
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text("utf-8"), (file, test)
