"""Signals end a command at once where nothing listens, wherever its main thread is."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from contexture.train.run import signals
from contexture.train.run.signals import EXIT_CODE, NAME
from tests.conftest import ROOT
from tests.helpers.commands import run_command
from tests.train.run.test_formats import GOLDEN

_BUSY = {
    # An exception of a handler would be ignored there, and the command go on.
    "destructor": "class Slow:\n    def __del__(self): print(1, flush=True); time.sleep(60)\nSlow()",
    "compiled": "print(1, flush=True); ctypes.CDLL(None).sleep(60)",
}


def _start(busy: str, before: str = "") -> subprocess.Popen[str]:
    code = f"""
import ctypes, os, sys, time
{before}
from pathlib import Path
from contexture.data.storage import atomic_file, atomic_folder
from contexture.train.run.signals import end_at_once
end_at_once()
with atomic_file(Path("a.txt")) as part, atomic_folder(Path("b")) as folder:
    part.write_text("half"); (folder / "c").write_text("half")
    {busy.replace(chr(10), chr(10) + "    ")}
print("went on")
"""
    env = {"PYTHONPATH": str(ROOT), "PATH": ""}
    return subprocess.Popen([sys.executable, "-c", code], stdout=-1, stderr=-1, text=True, env=env)


def test_the_message_of_a_signal_is_shown_while_stderr_is_redirected():
    """`plan` redirects it to a file while XLA compiles."""
    redirected = """
import os, signal, time
from contexture.train.run.signals import end_at_once
end_at_once()
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
os.kill(os.getpid(), signal.SIGINT)
time.sleep(60)
"""
    env = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", redirected], stderr=subprocess.PIPE, text=True, env=env, timeout=60)
    assert (done.returncode, done.stderr) == (130, "Ctrl-C: stopped; the same command starts again\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("where", ["destructor", "compiled"])
def test_a_signal_ends_a_process_at_once_and_leaves_no_partial_file(tmp_path, monkeypatch, where, number):
    monkeypatch.chdir(tmp_path)
    process = _start(_BUSY[where])
    assert process.stdout is not None and process.stdout.readline()
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (out, err) == ("", f"{NAME[number]}: stopped; the same command starts again\n")
    assert process.returncode == EXIT_CODE[number] and not any(tmp_path.iterdir())


FILES = {
    "t.txt": "the cat sees the dog\n",
    "c.tsv": "text\tlabel\tchoice1\tchoice2\nthe old cat\tanimal\tcat\tdog\n",
    "s.tsv": "the cat\ta dog\t0.5\nthe\ta\t0.1\n",
    "a.tsv": "text\tchoice1\tchoice2\tlabel\nthe\tcat\tdog\t0\n",
    "m.jsonl": '{"sentence_good": "the cat", "sentence_bad": "cat the", "UID": "a"}\n',
    "x.conllu": "1\tthe\tthe\tDET\t_\t_\t0\troot\t_\t_\n\n",
}
ZEROSHOT = {"lambada": "t.txt", "choice": "a.tsv", "blimp": "m.jsonl", "wikitext": "t.txt"}
AGAIN, NOTHING = "stopped; the same command starts again", "stopped, nothing was written; the same command starts again"


@pytest.mark.parametrize(
    ("words", "state"),
    [
        ("generate GPT --prompt a --tokens 3", "stopped"),
        ("score GPT --input t.txt", AGAIN),
        ("embed BERT --input t.txt --to v.npy", NOTHING),
        ("senses BERT --word the --input t.txt --to s.html", NOTHING),
        ("similarity BERT --input s.tsv --text 1 --second 2 --label 3 --header no", NOTHING),
        ("neighbours BERT --input t.txt --text the", AGAIN),
        ("predict TASK --input c.tsv --to o.jsonl", NOTHING),
        ("evaluate TASK --dev c.tsv", AGAIN),
        (
            "probe BERT --task pos --train x.conllu --dev x.conllu --to d",
            "stopped; d/probe.json has the runs and steps that were done",
        ),
        *((f"zeroshot GPT --task {task} --input {file}", AGAIN) for task, file in ZEROSHOT.items()),
    ],
)
def test_every_command_says_what_a_signal_leaves(tmp_path, monkeypatch, capsys, words, state):
    """One that came while it read its options is answered before any work."""
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        Path(name).write_text(content)
    begin = signals.Signals.__init__

    def after_one(listening: signals.Signals, *given: str) -> None:
        begin(listening, *given)
        listening.received = signal.SIGINT

    monkeypatch.setattr(signals.Signals, "__init__", after_one)
    runs = {"GPT": "gpt", "BERT": "bert", "TASK": "bert_classify"}
    code, err = run_command(capsys, *(str(GOLDEN / runs[word]) if word in runs else word for word in words.split()))
    assert code == 130 and err.splitlines()[-1] == f"Ctrl-C: {state}", err
    assert {file.name for file in tmp_path.iterdir()} <= {*FILES, "d"}


def test_a_signal_ends_a_process_whose_line_nobody_reads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    process = _start(_BUSY["compiled"])
    assert process.stdout is not None and process.stderr is not None and process.stdout.readline()
    process.stderr.close()
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 75 and process.stdout.read() == ""
    process.stdout.close()
    assert not any(tmp_path.iterdir())


def test_a_signal_ends_a_process_that_has_no_stderr(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    process = _start(_BUSY["compiled"], before="os.close(2)")
    assert process.stdout is not None and process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=20) == ("", "") and process.returncode == 75
    assert not any(tmp_path.iterdir())
