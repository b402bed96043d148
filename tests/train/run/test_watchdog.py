"""A run in which nothing ends any more is ended, and says where each thread is."""

import re
import signal
import subprocess
import sys
import time

import pytest

from contexture.data.cancel import NEVER
from contexture.train.run.watchdog import Watchdog
from tests.conftest import ROOT
from tests.helpers.buckets import BUCKET
from tests.helpers.jobs import finish, free_port, recorded, start_job, wait_until

_HANGS = """
import signal, sys, time
from pathlib import Path
from contexture.train.run.watchdog import Watchdog
signal.signal(signal.SIGTERM, lambda *_: None)
def somewhere():
    time.sleep(60)
with Watchdog(float(sys.argv[1]), Path(sys.argv[2]), "the last checkpoint is of step 7") as watchdog:
    for _ in range(6):
        time.sleep(0.5)
        watchdog.moved()
    print("moved", flush=True)
    somewhere()
"""


def test_a_process_that_hangs_is_ended_and_its_threads_are_written(tmp_path):
    file = tmp_path / "stalled.txt"
    process = subprocess.Popen(
        [sys.executable, "-c", _HANGS, str(1.5 / 60), str(file)], cwd=ROOT, stdout=-1, stderr=-1, text=True
    )
    began = time.monotonic()
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - began < 20 and process.returncode == 1
    # It moved for longer than the limit, and was ended only when it stood.
    assert out == "moved\n"
    said = r"Stalled: no step, evaluation or save has ended for [12] s \(mesh.stall-minutes=0.025\); where each thread "
    assert re.fullmatch(said + rf"is: {re.escape(str(file))}; the last checkpoint is of step 7\n", err), err
    assert "in somewhere" in file.read_text()


def test_the_places_of_the_threads_are_in_the_bucket_too(gs_store):
    address = f"gs://{BUCKET}/stalled-{time.time_ns()}"
    program = _HANGS.replace("Path(sys.argv[2])", "Path(local(sys.argv[2])) / 'stalled.1.txt'")
    program = program.replace("import signal", "from contexture.data.mirror import local\nimport signal", 1)
    program = program.replace("def somewhere", "Path(local(sys.argv[2])).mkdir()\ndef somewhere")
    words = [sys.executable, "-c", program, str(1.5 / 60), address]
    process = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert process.returncode == 1 and f"where each thread is: {address}/stalled.1.txt" in process.stderr
    (name,) = gs_store.names(address.removeprefix(f"gs://{BUCKET}/"))
    assert name.endswith("/stalled.1.txt") and b"in somewhere" in gs_store.read(name)


def test_a_process_that_was_suspended_for_longer_than_the_limit_goes_on(tmp_path):
    words = [sys.executable, "-c", _HANGS, str(2 / 60), str(tmp_path / "stalled.txt")]
    process = subprocess.Popen(words, cwd=ROOT, stdout=-1, stderr=-1, text=True)
    time.sleep(1.5)
    process.send_signal(signal.SIGSTOP)
    time.sleep(3)
    process.send_signal(signal.SIGCONT)
    assert process.communicate(timeout=30)[0] == "moved\n"


def test_a_line_is_written_where_no_file_can_be(tmp_path):
    words = [sys.executable, "-c", _HANGS, str(1.5 / 60), str(tmp_path / "none" / "stalled.txt")]
    process = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert process.returncode == 1 and process.stderr.startswith("Stalled: ")


def test_a_token_of_the_watchdog_notes_its_checks(tmp_path, monkeypatch):
    watchdog, now = Watchdog(1.0, tmp_path / "stalled.txt"), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    watchdog.moves(NEVER).check()
    assert watchdog._moved == 100.0
    # Without a limit no thread is started.
    with Watchdog(0.0, tmp_path / "stalled.txt") as off:
        assert off.limit == float("inf")


@pytest.mark.long
def test_a_collective_that_never_ends_is_ended(door, tiny_words, tmp_path):
    """The other process is stopped, and it would be missed in a quarter of an hour; jax holds SIGTERM."""
    folder = tmp_path / "run"
    words = [*tiny_words, "--mesh.peer-minutes", "15", "--mesh.stall-minutes", "0.25", "--steps", "100000"]
    processes = start_job(door, words, [folder, folder], free_port())
    wait_until(lambda: recorded(folder) >= 20, processes)
    processes[1].send_signal(signal.SIGSTOP)
    try:
        processes[0].send_signal(signal.SIGTERM)
        [(code, stderr)] = finish([processes[0]], 60)
    finally:
        processes[1].kill()
        processes[1].communicate()
    assert code == 1 and stderr.strip().splitlines()[-1].startswith("Stalled: "), stderr
    assert "the last checkpoint is of step " in stderr
    assert "Thread" in (folder / "stalled.txt").read_text()
