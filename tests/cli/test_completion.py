"""Shells complete commands, recipes, options of a command and a recipe, choices, and files."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from contexture.cli import main as cli
from contexture.cli.completion import SCRIPTS, complete
from tests.conftest import ROOT
from tests.train.run.test_formats import GOLDEN


@pytest.mark.parametrize(
    ("words", "found", "absent"),
    [
        ("", "pretrain help", "--json"),
        ("-", "--version --help", ""),
        ("help ", "tokenizer", ""),
        ("pretrain ", "bert.tiny gpt.tiny elmo.tiny", "classify"),
        (
            "pretrain bert.tiny --",
            "--data.masked-fraction --lr --config --json --data.no-lowercase",
            "--model.cells --task",
        ),
        ("pretrain elmo.tiny --", "--model.cells", "--model.quantization --data.masked-fraction"),
        ("pretrain mine.py:big --", "--model.layers", "--model.cells --model.heads"),
        ("pretrain bert.tiny --optim.name ", "adamw adagrad", "--lr"),
        ("pretrain bert.tiny --log.to ", "wandb mlflow aim", ""),
        ("pretrain bert.tiny --log.to wandb ", "mlflow aim", "--lr"),
        ("pretrain bert.tiny --optim.name=", "", ""),
        ("pretrain bert.tiny --help ", "all", ""),
        ("pretrain bert.tiny --steps 5 ", "", "bert.tiny"),
        (
            "finetune GOLDEN/elmo --task.kind tag --",
            "--head.crf --task.train",
            "--model.heads --data.path",
        ),
        ("finetune GOLDEN/bert --task ", "sst2 cola", "bert.tiny"),
        ("tokenizer ", "wordpiece words", ""),
        ("export run ", "hf bilm stablehlo", ""),
        ("evaluate run --", "--split --mesh.fsdp", "--lr"),
        ("evaluate run --split ", "dev test", ""),
        ("nonsense ", "", "pretrain"),
    ],
)
def test_words_that_may_follow_are_found(words, found, absent):
    what, words_found = complete(words.replace("GOLDEN", str(GOLDEN)).split(" "))
    assert what in ("words", "files") and set(words_found) >= set(found.split())
    assert not set(words_found) & set(absent.split()) or not absent


@pytest.mark.parametrize(
    "words", ["pretrain bert.tiny --data.path a ", "finetune ", "layers a ", "import hf ", "pretrain bert.tiny --init "]
)
def test_files_stand_where_a_file_or_a_folder_is_wanted(words):
    assert complete(words.split(" ")) == ("files", [])
    assert complete(["pretrain", "bert.tiny", "--steps", ""]) == ("words", [])


@pytest.fixture
def shell(tmp_path):
    """Runs a script of a shell, where `contexture` is this program and the folder holds text.txt and texts/."""
    program = tmp_path / "bin" / "contexture"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m contexture "$@"\n')
    program.chmod(0o755)
    (tmp_path / "here" / "texts").mkdir(parents=True)
    (tmp_path / "here" / "text.txt").write_text("")

    def run(*command: str) -> list[str]:
        if not shutil.which(command[0]):
            pytest.skip(f"needs {command[0]}, which is not installed")
        env = {"PATH": f"{program.parent}:/usr/bin:/bin:/usr/local/bin", "HOME": str(tmp_path), "TERM": "dumb"}
        done = subprocess.run(command, cwd=tmp_path / "here", env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and not done.stderr, done.stderr
        return done.stdout.split()

    return run


TRIED = (
    (("pretra",), ["pretrain"]),
    (("pretrain", "bert.ti"), ["bert.tiny"]),
    (("pretrain", "bert.tiny", "--optim.warmup-f"), ["--optim.warmup-fraction"]),
    (("pretrain", "bert.tiny", "--optim.name", "ad"), ["adagrad", "adamw"]),
    (("pretrain", "bert.tiny", "--data.path", "text.t"), ["text.txt"]),
    (("pretrain", "bert.tiny", "--steps", ""), []),
)


@pytest.mark.long
def test_bash_completes(shell):
    for words, expected in TRIED:
        line = " ".join(f"'{word}'" for word in ("contexture", *words))
        script = f"""eval "$(contexture completion bash)"; COMP_WORDS=({line}); COMP_CWORD={len(words)}
                     _contexture; printf '%s\\n' "${{COMPREPLY[@]}}" """
        assert sorted(shell("bash", "--norc", "-c", script)) == expected, words
    joined = """eval "$(contexture completion bash)"; COMP_WORDS=(contexture pretrain bert.tiny --optim.name = ad)
                COMP_CWORD=5; _contexture; printf '%s\\n' "${COMPREPLY[@]}" """
    assert sorted(shell("bash", "--norc", "-c", joined)) == ["adagrad", "adamw"]


def test_fish_completes(shell):
    for words, expected in TRIED[2:]:
        script = f"contexture completion fish | source; complete -C 'contexture {' '.join(words)}'"
        assert sorted(shell("fish", "--no-config", "-c", script)) == expected, words


def test_zsh_completes(shell):
    """zsh completes in a terminal alone: what the script offers to it is printed instead."""
    for words, expected in TRIED[2:]:
        line = " ".join(f"'{word}'" for word in ("contexture", *words))
        script = f"""compdef() {{ }}; source <(contexture completion zsh)
                     compadd() {{ shift; print -l -- ${{(M)@:#{words[-1]}*}} }}
                     _files() {{ print -l -- {words[-1]}*(N) }}
                     words=({line}); CURRENT={len(words) + 1}; _contexture; true"""
        assert sorted(shell("zsh", "-f", "-c", script)) == expected, words


def test_a_script_is_printed_for_each_shell(capsys):
    for name, script in SCRIPTS.items():
        assert cli.main(["completion", name]) == 0
        assert capsys.readouterr().out == script and "completion --words" in script


def test_words_are_printed_as_they_are_given(capsys, monkeypatch):
    """Also those that every command takes out of its arguments."""
    assert cli.main(["completion", "--words", "evaluate", "--json", "--split", "t"]) == 0
    assert capsys.readouterr().out.split() == ["words", "dev", "test", "train"]


def test_a_users_file_is_not_run_by_a_key_press(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("open('ran', 'w')\n")
    complete(["pretrain", "mine.py:big", "--"])
    assert not Path("ran").exists()
