"""A job of several processes is one run, or ends with one line that says why not."""

import json
import platform
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.helpers.jobs import finish, free_port, recorded, start_job, start_process, wait_until

SOON = ["--mesh.peer-minutes", "0.25", "--mesh.startup-minutes", "1"]


def one_line(stderr: str) -> str:
    """The last line of stderr, where there is no sign of native code or a traceback."""
    assert "Traceback" not in stderr and "@ 0x" not in stderr and "terminate called" not in stderr, stderr
    return stderr.strip().splitlines()[-1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("moment", "which", "number"),
    [
        ("preparing", 1, signal.SIGKILL),
        ("step", 0, signal.SIGKILL),
        ("step", 1, signal.SIGKILL),
        ("step", 0, signal.SIGSTOP),
        ("step", 1, signal.SIGSTOP),
        ("save", 1, signal.SIGKILL),
        ("evaluation", 0, signal.SIGKILL),
        ("evaluation", 1, signal.SIGKILL),
    ],
)
def test_a_process_that_dies_ends_the_other_with_its_name(door, tiny_words, tmp_path, moment, which, number):
    folder = tmp_path / "run"
    every = {"save": ["--save.every", "1"], "evaluation": ["--evaluate.every", "1", "--evaluate.batch", "8"]}
    words = [*tiny_words, *SOON, "--steps", "100000", *every.get(moment, ["--save.every", "20"])]
    processes = start_job(door, words, [folder, folder], free_port())
    goal = {"preparing": 0, "step": 40}.get(moment, 12)
    wait_until(lambda: recorded(folder) >= goal and (goal > 0 or (folder / "run.json").exists()), processes)
    if moment == "save":
        wait_until(lambda: any((folder / "checkpoints").glob("*tmp*")), processes)
    processes[which].send_signal(number)
    began = time.monotonic()
    try:
        [(code, stderr)] = finish([processes[1 - which]], 60)
        assert code == 1, stderr
        assert time.monotonic() - began < 45
    finally:
        processes[which].kill()
        processes[which].communicate()
    line = one_line(stderr)
    assert line.startswith(f"ProcessLost: process {which} of 2 ("), line
    saved = [int(step.name) for step in (folder / "checkpoints").glob("[0-9]*") if step.name.isdigit()]
    last = f"the last checkpoint is of step {max(saved)};" if saved else "there is no checkpoint yet;"
    assert last in line and (saved or moment != "step"), (line, saved)


@pytest.mark.long
def test_a_process_that_never_comes_is_named(door, tiny_words, tmp_path):
    words = [*tiny_words, "--mesh.startup-minutes", "0.2"]
    for number, expected in (
        (0, "process 1 of 2 did not join at localhost:"),
        (1, "no coordinator answered at localhost:"),
    ):
        port, began = free_port(), time.monotonic()
        [(code, stderr)] = finish([start_process(door, words, tmp_path / "run", port, number, 2)])
        assert code == 1 and time.monotonic() - began < 60, stderr
        assert one_line(stderr).startswith(f"ProcessLost: {expected}{port} within mesh.startup-minutes=0.2"), stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.long
@pytest.mark.parametrize("late", [0, 1])
def test_half_a_minute_between_two_starts_is_no_failure(door, tiny_words, tmp_path, late):
    words, port, folder = [*tiny_words, "--steps", "6"], free_port(), tmp_path / "run"
    early = start_process(door, words, folder, port, 1 - late, 2)
    time.sleep(30)
    done = finish([early, start_process(door, words, folder, port, late, 2)])
    assert [code for code, _ in done] == [0, 0], done
    assert f"process {1 - late} of 2 waits for the others at localhost:{port}" in done[0][1]


@pytest.mark.long
def test_processes_with_two_folders_are_refused(door, tiny_words, tmp_path):
    """Also where the other folder is a good copy, and where it is empty: nothing is made there."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for code, stderr in finish(start_job(door, [*tiny_words, *SOON], folders, free_port())):
        assert code == 2, stderr
        line = one_line(stderr)
        assert "ConfigError: process 1 of 2 has the token in --dir none, and process 0 has " in line, line
    assert not folders[1].exists()


@pytest.mark.long
def test_processes_with_other_settings_are_refused_by_name(door, tiny_words, tmp_path):
    folder, more = tmp_path / "run", {1: ["--optim.peak-lr", "7e-4"]}
    for code, stderr in finish(start_job(door, [*tiny_words, *SOON], [folder, folder], free_port(), more)):
        assert code == 2, stderr
        assert "ConfigError: process 1 of 2 has optim.peak_lr 0.0007, and process 0 has " in one_line(stderr), stderr


@pytest.mark.long
def test_processes_that_see_other_checkpoints_are_refused(door, tiny_words, tiny_run, tmp_path):
    """One folder by its token, whose checkpoints one process does not see (a file system that is behind)."""
    folder, behind = tmp_path / "run", tmp_path / "behind"
    shutil.copytree(tiny_run, folder)
    shutil.copytree(tiny_run, behind)
    shutil.rmtree(behind / "checkpoints" / "40")
    seen_by_both(folder, behind)
    words = [*tiny_words, *SOON, "--steps", "45"]
    for code, stderr in finish(start_job(door, words, [folder, behind], free_port())):
        assert code == 2 and "process 1 of 2 has checkpoints [" in one_line(stderr), stderr
    assert (folder / "checkpoints" / "40").is_dir() and not (folder / "damaged").exists()


def seen_by_both(folder: Path, other: Path) -> None:
    for name in ("lock", "run.json"):
        (other / name).unlink()
        (other / name).symlink_to(folder / name)


@pytest.mark.long
def test_one_process_that_cannot_read_a_checkpoint_makes_all_fall_back(door, tiny_words, tiny_run, tmp_path):
    """The copy that process 1 sees has a damaged array: both resume from step 30, and end as one run."""
    folder, other = tmp_path / "run", tmp_path / "other"
    for copy in (folder, other):
        shutil.copytree(tiny_run, copy)
    largest = max((other / "checkpoints" / "40" / "state").rglob("*"), key=lambda f: f.stat().st_size * f.is_file())
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])
    seen_by_both(folder, other)
    done = finish(start_job(door, [*tiny_words, *SOON], [folder, other], free_port()))
    assert "checkpoint of step 40: process 1 of 2: item state: " in done[0][1], done[0][1]
    assert "resuming from step 30" in done[0][1]


@pytest.mark.long
def test_a_failure_of_one_process_is_that_of_all(door, tiny_words, tmp_path):
    """The folder is moved while they train: both end with 1, and with its line."""
    folder = tmp_path / "run"
    words = [*tiny_words, *SOON, "--steps", "100000", "--save.every", "20"]
    processes = start_job(door, words, [folder, folder], free_port())
    wait_until(lambda: recorded(folder) >= 40, processes)
    shutil.move(folder, tmp_path / "moved")
    for code, stderr in finish(processes):
        assert code == 1, stderr
        assert "was moved or removed while it trains" in one_line(stderr), stderr


@pytest.mark.long
def test_a_signal_before_training_ends_all_processes(door, tiny_words, tmp_path):
    folder = tmp_path / "run"
    processes = start_job(door, [*tiny_words, *SOON], [folder, folder], free_port())
    wait_until(lambda: (folder / "run.json").exists(), processes)
    processes[0].terminate()
    codes = [code for code, _ in finish(processes)]
    assert codes in ([75, 75], [0, 0]), codes  # or it was done by then
    assert json.loads((folder / "run.json").read_text())["format"] == 2


@pytest.mark.long
def test_the_coordinator_listens_on_the_address_given_alone(door, tiny_words, tmp_path):
    port = free_port()
    words = [*tiny_words, "--mesh.startup-minutes", "0.15"]
    process = start_process(door, words, tmp_path / "run", port, 0, 2)
    try:
        wait_until(lambda: bool(listening(port)), [process], 60)
        assert listening(port) <= {
            "0100007F",
            "00000000000000000000000001000000",
            "0000000000000000FFFF00000100007F",
        }, listening(port)
    finally:
        process.kill()
        process.communicate()


def listening(port: int) -> set[str]:
    """The local addresses on which something listens at a port, as Linux writes them (127.0.0.1 and ::1 here)."""
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            address, _, number = local.rpartition(":")
            if state == "0A" and int(number, 16) == port:
                ports.add(address)
    return ports


@pytest.mark.long
def test_each_process_has_a_log_with_its_start_and_its_end(door, tiny_words, tmp_path):
    """Process 1 is stopped and started again; then it is killed, which process 0 notes."""
    folder = tmp_path / "run"
    logs = [folder / "log.txt", folder / "log.1.txt"]
    words = [*tiny_words, *SOON, "--steps", "100000", "--save.every", "20"]
    for number in (signal.SIGTERM, signal.SIGKILL):
        before = recorded(folder)
        processes = start_job(door, words, [folder, folder], free_port())
        wait_until(lambda before=before: recorded(folder) >= before + 40, processes)
        processes[1].send_signal(number)
        ended = finish(processes)
        texts = [log.read_text() for log in logs]
        for each, (process, text) in enumerate(zip(processes, texts, strict=True)):
            assert text.count(f" process {each} of 2: {platform.node()}, pid {process.pid}, cpu ") == 1, text
    # Both have said that they were stopped; the end of the killed one is in the other's log alone.
    assert all(text.count(f" in {folder}; the same command resumes from there") == 1 for text in texts), texts
    last = texts[0].splitlines()[-1]
    assert "ProcessLost: process 1 of 2 (" in last and last.endswith(one_line(ended[0][1]))
    assert "ProcessLost" not in texts[1]
    assert sorted(path.name for path in folder.glob("log*")) == ["log.1.txt", "log.txt"]
