"""--overwrite replaces what a command has written before, and nothing else."""

from pathlib import Path

import pytest

from contexture import requests
from tests.helpers.commands import run_command
from tests.train.run.test_formats import GOLDEN

pytestmark = pytest.mark.usefixtures("one_device")


def _files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_an_export_replaces_an_earlier_one_alone(tmp_path, capsys):
    command = ["export", GOLDEN / "bert", "hf", "--to", tmp_path / "hf"]
    assert run_command(capsys, *command)[0] == 0
    exported = _files(tmp_path / "hf")
    (tmp_path / "hf" / "config.json").write_text("{}")
    code, err = run_command(capsys, *command)
    assert code == 2 and "already holds something" in err
    assert run_command(capsys, *command, "--overwrite")[0] == 0 and _files(tmp_path / "hf") == exported
    (tmp_path / "hf" / "notes.txt").write_text("mine")
    code, err = run_command(capsys, *command, "--overwrite")
    assert code == 2 and "hf: holds notes.txt, which would not be written anew" in err and len(err.splitlines()) == 1
    assert _files(tmp_path / "hf") == {**exported, "notes.txt": b"mine"}


def test_the_current_folder_is_not_replaced(tmp_path, capsys, monkeypatch):
    """A shell would stand in a folder that is no more."""
    run = (GOLDEN / "bert").resolve()
    assert run_command(capsys, "export", run, "hf", "--to", tmp_path / "a" / "hf")[0] == 0
    for here, to in ((tmp_path / "a" / "hf", "."), (tmp_path / "a" / "hf", ".."), (tmp_path / "a", tmp_path / "a")):
        monkeypatch.chdir(here)
        code, err = run_command(capsys, "export", run, "hf", "--to", to, "--overwrite")
        assert code == 2 and "the current folder or one above it, which cannot be replaced" in err, err
    assert (tmp_path / "a" / "hf" / "config.json").exists()


def test_predictions_replace_a_file(tmp_path, capsys):
    (tmp_path / "new.jsonl").write_text('{"text": "the old cat"}\n')
    to = tmp_path / "answers.jsonl"
    to.write_text("old")
    command = ["predict", GOLDEN / "bert_classify", "--input", tmp_path / "new.jsonl", "--to", to]
    assert run_command(capsys, *command)[0] == 2 and to.read_text() == "old"
    assert run_command(capsys, *command, "--overwrite")[0] == 0 and '"prediction"' in to.read_text()


def test_a_tokenizer_replaces_one_of_its_kind(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\n" * 9)
    to = tmp_path / "vocabulary"

    def learn(kind: str, *options: str) -> tuple[int, str]:
        return run_command(capsys, "tokenizer", kind, "--input", text, "--to", to, *options)

    assert learn("words")[0] == 0
    words = _files(to)
    assert learn("words")[0] == 2
    text.write_text("a dog ran\n" * 9)
    assert learn("words", "--overwrite")[0] == 0 and _files(to) != words and _files(to).keys() == words.keys()
    code, err = learn("byte-bpe", "--overwrite")
    assert code == 2 and "which would not be written anew" in err, err


def test_overwriting_is_for_a_file_that_is_written():
    with pytest.raises(ValueError, match="^overwrite= is for a file of predictions; give --to FILE too"):
        requests.PredictionRequest(run="run", text="a", overwrite=True)
