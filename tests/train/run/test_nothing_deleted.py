"""Nothing that a run has made is deleted but by its own retention policy; what is in the way is refused or moved."""

import json
import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

import contexture
from contexture.cli import main as cli
from contexture.data.config import DataConfig
from contexture.data.errors import DataError
from contexture.data.pretraining.tokenize_corpus import prepare
from contexture.data.storage import atomic_file, atomic_folder, move_aside, partial_of
from contexture.data.tokenizers.registry import learn
from contexture.train.errors import ConfigError
from contexture.train.run import folder as folders
from contexture.train.run.report import read_metrics
from tests.conftest import TINY
from tests.helpers.commands import run_command

TASK = Path(__file__).parents[2] / "golden" / "bert_classify"
pytestmark = pytest.mark.usefixtures("one_device")


def files_of(folder: Path, *names: str) -> dict[str, bytes]:
    files = [path for name in names for path in (folder / name).rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def copied(tiny_run: Path, tmp_path: Path) -> Path:
    """A finished run of 40 steps, which the test may harm."""
    shutil.copytree(tiny_run, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("missing", [("data",), ("data", "tokenizer"), ("data", "tokenizer", "versions")])
def test_a_run_json_without_its_data_entry_loses_nothing(tiny_words, copied, capsys, missing):
    before = files_of(copied, "checkpoints/40", "data", "tokenizer")
    tree = json.loads((copied / "run.json").read_text())
    (copied / "run.json").write_text(json.dumps({name: x for name, x in tree.items() if name not in missing}))
    code, err = run_command(capsys, *tiny_words, "--dir", copied)
    assert code == 0 and "resuming from step 40" in err, err
    assert files_of(copied, "checkpoints/40", "data", "tokenizer") == before
    assert json.loads((copied / "run.json").read_text())["data"] == tree["data"]
    assert sum(1 for _ in read_metrics(copied / "metrics.jsonl")) >= 40


def test_a_run_json_without_its_data_entry_and_other_text_is_refused(tiny_words, copied, capsys):
    """The vocabulary that lies there is another, also where run.json does not name it."""
    tree = json.loads((copied / "run.json").read_text())
    del tree["data"], tree["tokenizer"]
    (copied / "run.json").write_text(json.dumps(tree))
    shutil.rmtree(copied / "data")
    at = tiny_words.index("--data.path") + 1
    other = copied.parent / "other.txt"
    other.write_text("One two three.\nFour five six.\n\nSeven eight nine.\nTen one two.\n\nA b.\nC d.\n" * 9, "utf-8")
    words = [*tiny_words[:at], str(other), *tiny_words[at + 1 :]]
    before = files_of(copied, "checkpoints", "tokenizer")
    code, err = run_command(capsys, *words, "--dir", copied)
    assert code == 2 and "the text has another vocabulary than" in err, err
    assert files_of(copied, "checkpoints", "tokenizer") == before


def test_records_that_no_crash_explains_are_kept_beside(tiny_words, copied, capsys, start_or_run):
    """All checkpoints are gone: the run starts over, and what it had recorded stays."""
    before = (copied / "metrics.jsonl").read_bytes()
    shutil.move(copied / "checkpoints", copied.parent / "checkpoints")
    code, err = run_command(capsys, *tiny_words, "--dir", copied)
    assert code == start_or_run and "starting at step 0" in err and "steps beyond step 0; kept it in" in err, err
    assert (copied / "earlier-1" / "metrics.jsonl").read_bytes() == before


def test_a_damaged_line_of_metrics_is_kept_beside(tiny_words, copied, capsys):
    lines = (copied / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    harmed = b"".join([*lines[:5], b"{\xff\n", *lines[6:], b'{"step": 41, "spl'])
    (copied / "metrics.jsonl").write_bytes(harmed)
    code, err = run_command(capsys, *tiny_words, "--dir", copied)
    assert code == 0 and "holds 39 of the 40 steps done" in err, err
    assert (copied / "earlier-1" / "metrics.jsonl").read_bytes() == harmed


def test_a_torn_last_line_is_nothing_to_keep(tiny_words, copied, capsys):
    with open(copied / "metrics.jsonl", "ab") as file:
        file.write(b'{"step": 41, "spl')
    assert run_command(capsys, *tiny_words, "--dir", copied)[0] == 0
    assert not (copied / "earlier-1").exists()


def test_other_settings_before_the_first_checkpoint_move_all_aside(tiny_words, copied, capsys, start_or_run):
    shutil.rmtree(copied / "checkpoints")
    before, described = files_of(copied, "data", "tokenizer"), (copied / "run.json").read_text()
    code, err = run_command(capsys, *tiny_words, "--dir", copied, "--seed", "7", "--steps", "6")
    assert code == start_or_run and f"starting over; moved what it held to {copied / 'earlier-1'}" in err, err
    assert files_of(copied / "earlier-1", "data", "tokenizer") == before
    assert (copied / "earlier-1" / "run.json").read_text() == described


def test_what_a_stopped_start_left_is_used(tiny_words, tmp_path, capsys, monkeypatch, start_only):
    """Tokenised text whose run.json was not finished is opened, and not made again."""
    folder = tmp_path / "run"
    assert run_command(capsys, *tiny_words, "--dir", folder)[0] == 130
    tree = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({k: tree[k] for k in ("format", "config", "versions")}))

    def again(*_: object, **options: object) -> None:
        pytest.fail("the text was tokenised again")

    monkeypatch.setattr("contexture.data.pretraining.tokenize_corpus.prepare", again)
    assert run_command(capsys, *tiny_words, "--dir", folder)[0] == 130
    assert json.loads((folder / "run.json").read_text()) == tree


def test_a_folder_of_the_users_beside_the_target_is_left_alone(tmp_path, text_folder):
    theirs = [tmp_path / ".shards.partial", tmp_path / ".shards.0123456.partial"]
    for folder in theirs:
        folder.mkdir()
        (folder / "mine.txt").write_text("mine")
    data = DataConfig(path=(str(text_folder),))
    lines = (line for file in text_folder.iterdir() for line in file.read_text("utf-8").splitlines())
    prepare(data, learn("wordpiece", lines, 150, True), tmp_path / "shards")
    assert all((folder / "mine.txt").read_text() == "mine" for folder in theirs)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["shards", *(path.name for path in theirs)])


def test_an_atomic_file_is_whole_or_as_it_was(tmp_path):
    file = tmp_path / "a.json"
    with atomic_file(file) as part:
        part.write_text("one")
    with pytest.raises(OSError, match="no space"), atomic_file(file) as part:
        part.write_text("tw")
        raise OSError("no space")
    assert file.read_text() == "one" and [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_an_atomic_folder_never_takes_the_place_of_another(tmp_path):
    with pytest.raises(Exception, match="already holds something"), atomic_folder(tmp_path / "a") as part:
        (part / "x").write_text("mine")
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "y").write_text("theirs")
    assert [path.name for path in tmp_path.iterdir()] == ["a"] and (tmp_path / "a" / "y").read_text() == "theirs"


def test_a_folder_is_overwritten_where_each_file_has_a_successor(tmp_path):
    def write(*names: str, overwrite: bool = True) -> None:
        with atomic_folder(tmp_path / "a", overwrite) as part:
            for name in names:
                (part / name).parent.mkdir(exist_ok=True)
                (part / name).write_text(f"{len(names)} {name}")

    write("x", "deep/y")
    write("x", "deep/y", "z")
    assert files_of(tmp_path, "a") == {"a/x": b"3 x", "a/deep/y": b"3 deep/y", "a/z": b"3 z"}
    for lacking in (("x", "z"), ("x", "deep", "z"), ("x", "deep/z", "z")):
        with pytest.raises(DataError, match="a: holds deep.*, which would not be written anew; move it away, or give"):
            write(*lacking)
    with pytest.raises(DataError, match="a: already holds something"):
        write("x", "deep/y", "z", overwrite=False)
    assert files_of(tmp_path, "a") == {"a/x": b"3 x", "a/deep/y": b"3 deep/y", "a/z": b"3 z"}
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_what_is_moved_aside_never_meets_what_was_moved_before(tmp_path):
    for number in (1, 2, 3):
        (tmp_path / "a").write_text(str(number))
        assert move_aside(tmp_path, ["a", "b"], "earlier") == tmp_path / f"earlier-{number}"
    assert [(tmp_path / f"earlier-{n}" / "a").read_text() for n in (1, 2, 3)] == ["1", "2", "3"]
    assert move_aside(tmp_path, ["a", "b"], "earlier") is None


def test_a_start_leaves_alone_what_others_write_and_own_in_its_folder(tiny_words, copied, tmp_path, capsys):
    """As `prepare --to RUN/shards` at work there, and a file of the user's that is called so; its own leavings go."""
    shards, theirs, own = (copied / f".{name}.0123abcd.partial" for name in ("shards", "thesis", "data"))
    for folder in (shards, own):
        folder.mkdir()
        (folder / "tokens.bin").write_bytes(b"x")
    theirs.write_text("mine")
    code, err = run_command(capsys, *tiny_words, "--dir", copied)
    assert code == 0 and theirs.read_text() == "mine" and (shards / "tokens.bin").exists() and not own.exists(), err
    for name in ("lock", ".thesis.0123abcd.partial"):
        folder = tmp_path / f"with {name}"
        folder.mkdir()
        (folder / name).write_text("my notes")
        code, err = run_command(capsys, *tiny_words, "--dir", folder)
        assert code == 2 and f"holds {name} and no run.json: it is no run's folder" in err, err
        assert [(file.name, file.read_text()) for file in folder.iterdir()] == [(name, "my notes")]


@pytest.mark.long
def test_a_refused_start_leaves_the_vocabulary_of_a_run(text_folder, tmp_path, capsys):
    """Prepared text that was replaced by text of another vocabulary: the run is the same afterwards."""
    lines = [line for file in sorted(text_folder.iterdir()) for line in file.read_text("utf-8").splitlines()]
    shards, folder = tmp_path / "shards", tmp_path / "run"
    words = ["pretrain", "bert.tiny", "--data.path", shards, *TINY, "--dir", folder]
    prepare(DataConfig(path=(str(text_folder),)), learn("wordpiece", lines, 150, True), shards)
    assert run_command(capsys, *words, "--steps", "6")[0] == 0
    before = files_of(folder, "tokenizer", "checkpoints", "run.json")
    shutil.rmtree(shards)
    prepare(DataConfig(path=(str(text_folder),)), learn("wordpiece", lines, 120, True), shards)
    code, err = run_command(capsys, *words, "--steps", "8")
    assert code == 2 and f"the text has another vocabulary than {folder / 'tokenizer'}" in err, err
    assert files_of(folder, "tokenizer", "checkpoints", "run.json") == before


def test_checkpoints_on_a_disk_that_is_not_there_are_waited_for(tiny_words, copied, tmp_path, capsys):
    shutil.move(copied / "checkpoints", tmp_path / "disk")
    (copied / "checkpoints").symlink_to(tmp_path / "elsewhere")
    before = (copied / "metrics.jsonl").read_bytes()
    code, err = run_command(capsys, *tiny_words, "--dir", copied)
    assert code == 2 and f"is a link to {tmp_path / 'elsewhere'}, which is not there; mount that disk" in err, err
    assert (copied / "metrics.jsonl").read_bytes() == before and not list(copied.glob("earlier-*"))


def test_a_file_of_the_users_is_never_written_over(task_files, tmp_path, capsys):
    theirs = tmp_path / "answers.jsonl"
    theirs.write_text("mine")
    code, err = run_command(capsys, "predict", TASK, "--input", task_files / "classify.dev.tsv", "--to", theirs)
    assert code == 2 and f"--to {theirs} is there already; give another name, or --overwrite" in err, err
    assert theirs.read_text() == "mine" and [file.name for file in tmp_path.iterdir()] == ["answers.jsonl"]


def test_only_names_of_partial_files_are_partial():
    assert partial_of(".data.0123abcd.partial") == "data"
    assert not any(map(partial_of, ("data", ".data.partial", ".data.0123abcX.partial", "data.0123abcd.partial")))


@pytest.mark.parametrize("command", ["pretrain", "evaluate", "prepare", "predict"])
def test_another_address_is_refused_in_one_line_and_makes_no_folder(
    command, tiny_words, task_files, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    words = {
        "pretrain": [*tiny_words, "--dir", "abfs://bucket/run"],
        "evaluate": ["evaluate", "abfs://bucket/run"],
        "prepare": ["prepare", "bert.tiny", "--input", tiny_words[tiny_words.index("--data.path") + 1], "--to", "abfs://b/x"],
    }  # fmt: skip
    if command == "predict":
        rows = task_files / "classify.dev.tsv"
        words["predict"] = ["predict", TASK, "--input", rows, "--to", "abfs://bucket/answers.jsonl"]
    code, err = run_command(capsys, *words[command])
    assert code == 2 and "only gs://BUCKET/… and s3://BUCKET/… are supported" in err and len(err.splitlines()) == 1, err
    assert list(tmp_path.iterdir()) == [] and ("abfs://b/x: " in err or command != "prepare")


def test_a_prepare_that_was_killed_is_named(tmp_path, text_folder, capsys):
    (tmp_path / ".shards.0123abcd.partial").mkdir()
    words = ["prepare", "bert.tiny", "--input", str(text_folder), "--to", str(tmp_path / "shards")]
    assert cli.main(words) == 0
    assert f"{tmp_path / '.shards.0123abcd.partial'} is what a preparation that was killed has left" in (
        capsys.readouterr().err
    )


def test_what_a_run_holds_is_known_as_a_runs(task_run, tmp_path):
    """By these names a later start moves aside what was in its way, and removes what a kill has left half written."""
    run = shutil.copytree(task_run("classify"), tmp_path / "run")
    contexture.evaluate(run)
    around = {"run.json", "lock", folders.LOG, folders.INPUTS}
    assert {path.name for path in run.iterdir()} - around <= {*folders._OF_A_RUN}
    assert {"evaluations", "checkpoints", "loss.svg", "metrics.jsonl"} <= {path.name for path in run.iterdir()}


def test_logs_of_a_start_that_was_killed_are_a_runs_and_others_are_not(tmp_path):
    for number in (0, 1, 12):
        (tmp_path / folders.log_file(number)).write_text("said\n")
    folders.lock_run_dir(tmp_path).close()
    for name in ("log.0.txt", "log.mine.txt", "log.1.txt.gz", "catalog.1.txt"):
        (tmp_path / name).touch()
        with pytest.raises(ConfigError, match=f"holds {name} and no run.json"):
            folders.lock_run_dir(tmp_path)
        (tmp_path / name).unlink()


def test_a_folder_that_was_replaced_counts_although_the_old_one_stays(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("old")
    refuse = Mock(side_effect=OSError("busy"))
    with atomic_folder(tmp_path / "a", overwrite=True) as part:
        (part / "file").write_text("new")
        monkeypatch.setattr("os.rmdir", refuse)
    monkeypatch.undo()
    assert (tmp_path / "a" / "file").read_text() == "new" and refuse.called


def test_a_folder_that_cannot_be_replaced_stays_as_it_was(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("old")
    plain, calls = os.rename, list[str]()

    def second_fails(source, target):
        calls.append(str(target))
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        plain(source, target)

    with pytest.raises(OSError, match="No space left"), atomic_folder(tmp_path / "a", overwrite=True) as part:
        (part / "file").write_text("new")
        monkeypatch.setattr("os.rename", second_fails)
    monkeypatch.undo()
    assert len(calls) == 3 and (tmp_path / "a" / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
