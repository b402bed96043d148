"""A job that is killed and started again, with as many processes or fewer, reads the same data in the same order."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

from contexture.train.run.report import read_metrics
from tests.helpers.jobs import finish, free_port, recorded, start_job, wait_until
from tests.helpers.parity_rule import close

DEVICES = 8
"""Of all processes together: the mesh stays the same."""


def losses(folder: Path) -> dict[int, float]:
    return {r["step"]: r["loss"] for r in read_metrics(folder / "metrics.jsonl") if r["split"] == "train"}


def killed(door, words: list[str], folder: Path, count: int, moment: str) -> None:
    """Kills one process of a job at a moment: the others end soon, each with one line, though jax holds SIGTERM."""
    processes = start_job(door, words, [folder] * count, free_port(), devices=DEVICES // count)
    before = recorded(folder)
    if moment == "start-up":
        wait_until(lambda: (folder / "run.json").exists(), processes)
    else:
        wait_until(lambda: recorded(folder) >= before + 12, processes)
    if moment == "save":
        wait_until(lambda: any((folder / "checkpoints").glob("*tmp*")), processes)
    victim = count - 1 if moment == "step" else 0
    processes[victim].send_signal(signal.SIGKILL)
    began = time.monotonic()
    for number, (code, stderr) in enumerate(finish(processes, 60)):
        assert code == (-signal.SIGKILL if number == victim else 1), stderr
        assert number == victim or stderr.strip().splitlines()[-1].startswith("ProcessLost: process "), stderr
        assert "Traceback" not in stderr
    assert time.monotonic() - began < 60


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "kills"),
    [
        ("tiny", [(4, "start-up"), (4, "step"), (2, "save")]),
        ("gpt", [(4, "save"), (2, "step")]),
        ("elmo", [(4, "step"), (2, "save")]),
    ],
)
def test_a_killed_job_reads_on_with_fewer_processes(door, tmp_path, family, kills, request):
    """One of four processes is killed, then one of two; one process trains to the end."""
    words = [*request.getfixturevalue(f"{family}_words"), "--steps", "100"]
    assert door(*words, "--dir", tmp_path / "whole", devices=DEVICES).returncode == 0
    folder, soon = tmp_path / "run", ["--mesh.peer-minutes", "0.25", "--mesh.startup-minutes", "2"]
    for count, moment in kills:
        killed(door, [*words, *soon], folder, count, moment)
    last = door(*words, "--dir", folder, devices=DEVICES)
    assert last.returncode == 0, last.stderr
    one, several = losses(tmp_path / "whole"), losses(folder)
    assert list(several) == list(one) == list(range(1, 101))
    close(list(several.values()), list(one.values()), tolerance=1e-5)


@pytest.mark.long
def test_a_process_that_rests_for_a_minute_changes_nothing(door, tiny_words, tmp_path):
    """The other one waits for it in a collective operation: neither counts as gone, nor the run as hung.

    It rests when every program has run: jax's collectives of CPUs wait for 30 s when they meet for the first time.
    """
    words = [*tiny_words, "--steps", "150", "--mesh.peer-minutes", "3"]
    folders = [tmp_path / name for name in ("whole", "rested")]
    for folder in folders:
        processes: list[subprocess.Popen] = start_job(door, words, [folder] * 2, free_port())
        if folder.name == "rested":
            wait_until(lambda folder=folder: recorded(folder) >= 60, processes)
            processes[1].send_signal(signal.SIGSTOP)
            time.sleep(60)
            processes[1].send_signal(signal.SIGCONT)
        ended = finish(processes, 600)
        assert [code for code, _ in ended] == [0, 0], ended
    assert losses(folders[0]) == losses(folders[1]) != {}
