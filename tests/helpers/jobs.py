"""Jobs of several processes on this machine: started, waited for, their last lines read."""

import json
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from contexture.train.run.report import read_metrics


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return s.getsockname()[1]


def start_job(
    door, words: list[str], folders: list[Path], port: int, more: dict[int, list[str]] | None = None, devices: int = 4
) -> list[subprocess.Popen]:
    """A process of so many devices for each folder, one job; more: further words of a process."""
    return [
        start_process(door, [*words, *(more or {}).get(number, [])], folder, port, number, len(folders), devices)
        for number, folder in enumerate(folders)
    ]


def start_process(
    door, words: list[str], folder: Path | str, port: int, number: int, count: int, devices: int = 4
) -> subprocess.Popen:
    environment = {
        "JAX_COORDINATOR_ADDRESS": f"localhost:{port}",
        "JAX_NUM_PROCESSES": str(count),
        "JAX_PROCESS_ID": str(number),
    }
    return door(*words, "--dir", folder, "--mesh.distributed", devices=devices, wait=False, env=environment)


def evaluate_in_two_processes(door, run: Path, batch: int, to: Path) -> dict:
    """What evaluating a run says, done by two processes of two devices each."""
    around = {"JAX_COORDINATOR_ADDRESS": f"localhost:{free_port()}", "JAX_NUM_PROCESSES": "2"}
    words = ["evaluate", run, "--batch", batch, "--mesh.distributed", "--to", to, "--json"]
    processes = [door(*words, devices=2, wait=False, env={**around, "JAX_PROCESS_ID": str(n)}) for n in range(2)]
    outputs = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    # The first process alone speaks.
    assert not outputs[1][0].strip()
    return json.loads(outputs[0][0])


def finish(processes: list[subprocess.Popen], timeout: float = 240) -> list[tuple[int, str]]:
    """(exit code, stderr) of each."""
    done = []
    try:
        for process in processes:
            _, stderr = process.communicate(timeout=timeout)
            done.append((process.returncode, stderr))
    finally:
        for process in processes[len(done) :]:
            process.kill()
            process.communicate()
    return done


def wait_until(true: Callable[[], bool], processes: list[subprocess.Popen], seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline and all(process.poll() is None for process in processes):
        time.sleep(0.05)
    assert true(), [process.communicate(timeout=60)[1] for process in processes if process.poll() is not None]


def recorded(folder: Path) -> int:
    return max((record["step"] for record in read_metrics(folder / "metrics.jsonl")), default=0)
