"""Signals end a command at once where nothing listens, wherever its main thread is."""

import signal
import subprocess
import sys

import pytest

from contexture.train.run.signals import EXIT_CODE, NAME
from tests.conftest import ROOT

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
