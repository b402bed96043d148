"""What the processes of a job tell each other, through a store that stands in for that of jax."""

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from contexture.data.errors import DataError
from contexture.train.distributed import native_aborts, processes
from contexture.train.errors import ConfigError, ProcessLost
from contexture.train.settings.sections import MeshConfig
from tests.conftest import ROOT

INTERVAL = 0.1
"""Seconds between two heartbeats: a sixth of the limit."""
PATIENCE: Any = SimpleNamespace(peer_minutes=6 * INTERVAL / 60)


class Store:
    """The key-value store of jax's coordination service, as far as it is used."""

    def __init__(self) -> None:
        self.held: dict[str, str] = {}

    def key_value_set(self, name: str, text: str, allow_overwrite: bool) -> None:
        assert allow_overwrite
        self.held[name] = text

    def key_value_dir_get(self, folder: str) -> list[tuple[str, str]]:
        return [(name, text) for name, text in self.held.copy().items() if name.startswith(folder)]

    def key_value_try_get(self, name: str) -> str:
        if name not in self.held:
            raise jax.errors.JaxRuntimeError("NOT_FOUND: no such key")
        return self.held[name]

    def blocking_key_value_get(self, name: str, milliseconds: int) -> str:
        deadline = time.monotonic() + min(milliseconds / 1000, 0.05)
        while name not in self.held:
            if time.monotonic() > deadline:
                raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: nobody set it")
            time.sleep(0.001)
        return self.held[name]


class Ended(BaseException):
    """The process would have ended with a code and a line."""


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Store]]:
    """`job(1)` → the store; this thread, and all others, are process 1 of two from then on."""
    store, own = Store(), processes._Job()
    own.config, own.contact = PATIENCE, time.monotonic()

    def end(code: int, line: str) -> None:
        raise Ended(code, line)

    for name, stand_in in {"_client": lambda: store, "_count": lambda: 2, "_job": own, "_end": end,
                           "_address": lambda: "host:1"}.items():  # fmt: skip
        monkeypatch.setattr(processes, name, stand_in)

    def become(number: int) -> Store:
        monkeypatch.setattr(processes, "_me", lambda: number)
        return store

    yield become
    own.finished = True


def ended(work: Callable[[], object]) -> tuple[int, str]:
    with pytest.raises(Ended) as caught:
        work()
    return caught.value.args  # pyright: ignore[reportReturnType]


def test_a_process_that_never_joined_is_missed_and_all_end(job):
    store = job(0)
    store.held["contexture/heard/1"] = ""  # the other one has read the line
    processes._job.saved_steps = lambda: [10, 20]
    code, line = ended(processes._watch)
    assert code == 1 and line.startswith("ProcessLost: process 1 of 2 (it never joined) gave no sign of life for ")
    assert line.endswith("the last checkpoint is of step 20; the same command resumes from it")
    assert json.loads(store.held["contexture/end/0"]) == [1, line] and "contexture/heard/0" in store.held


def test_the_line_that_a_thread_ends_with_is_in_the_log(monkeypatch, tmp_path, capsys):
    """Also where the folder is gone by then, which is not made again."""
    ends: list[int] = []
    monkeypatch.setattr(processes.os, "_exit", ends.append)
    monkeypatch.setattr(processes.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(processes, "_job", processes._Job())
    for folder in (tmp_path, tmp_path / "gone"):
        monkeypatch.setattr(processes, "_ending", threading.Lock())
        processes.keep_last_line(folder / "log.1.txt")
        processes._end(1, "ProcessLost: process 0\nis gone")
        assert capsys.readouterr().err == "ProcessLost: process 0 is gone\n"
    (line,) = (tmp_path / "log.1.txt").read_text().splitlines()
    assert re.fullmatch(r"[0-9-]{10} [0-9:]{8} ProcessLost: process 0 is gone", line)
    assert set(ends) == {1} and not (tmp_path / "gone").exists()


def test_a_process_without_heartbeats_is_named_with_its_host(job):
    store = job(0)
    store.held |= {"contexture/alive/1": "7 host, pid 9", "contexture/heard/1": ""}
    began = time.monotonic()
    _, line = ended(processes._watch)
    assert "process 1 of 2 (host, pid 9) gave no sign" in line and "there is no checkpoint yet; start the same" in line
    assert time.monotonic() - began > 6 * INTERVAL


@pytest.mark.parametrize("why", ["it beats", "it is done", "process 0 beats"])
def test_who_lives_or_is_done_is_not_missed(job, monkeypatch, why):
    """By a clock that goes on while the watching thread rests, for more than three times the limit."""
    store = job(1 if "0" in why else 0)
    if why == "it is done":
        store.held["contexture/done/1"] = ""
    beats = {"it beats": "1", "process 0 beats": "0"}.get(why)
    rests: list[float] = []

    def rest(seconds: float) -> None:
        rests.append(seconds)
        if beats:
            store.held[f"contexture/alive/{beats}"] = f"{len(rests)} host, pid 9"
        processes._job.finished = sum(rests) > 3 * 6 * INTERVAL

    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: sum(rests), sleep=rest))
    processes._watch()
    assert store.held[f"contexture/alive/{processes._me()}"].partition(" ")[0] == str(len(rests) - 1) != "0"
    assert processes._job.contact == sum(rests) - processes._interval()


def test_what_one_process_ends_with_ends_the_others(job):
    store = job(1)
    store.held["contexture/end/0"] = json.dumps([75, "process 0 of 2: stopped"])
    assert ended(processes._watch) == (75, "process 0 of 2: stopped") and "contexture/heard/1" in store.held


def test_process_0_that_answers_no_more_is_missed(job):
    job(1)
    processes._job.contact = time.monotonic() - 10
    code, line = ended(processes._watch_contact)
    assert code == 1 and line.startswith("ProcessLost: process 0 of 2 (host:1) gave no sign of life for 10 s; there")
    job(0)
    processes._watch_contact()  # returns: it has nobody to ask


def test_texts_are_exchanged_in_the_order_of_the_processes(job):
    for number in (1, 0):  # the second finds what the first has told
        store = job(number)
        processes._job.rounds = iter([0])  # pyright: ignore[reportAttributeAccessIssue]
        store.held["contexture/exchange/0/0"] = "zero"
        assert processes.exchange(["zero", "one"][number]) == ["zero", "one"]
    job(0)
    processes._job.rounds = iter([1])  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ProcessLost, match="process 1 of 2 did not come as far as the others in time; see what it"):
        processes.exchange("zero", minutes=0.0)


def test_a_text_of_process_0_is_waited_for(job):
    job(0)
    processes.publish("a", "text")
    job(1)
    assert processes.wait_for("a") == "text" and processes._get("b") == ""
    assert processes._all("a") == {}


@pytest.mark.parametrize("error", [DataError("a file"), RuntimeError("lost")])
def test_an_error_in_one_process_ends_all_with_its_name(job, monkeypatch, error):
    """Another error than the user's may come of a process that died: the watching thread finds that out first."""
    store = job(1)
    monkeypatch.setattr(processes, "initialize", lambda config: None)
    monkeypatch.setattr(processes, "_interval", lambda: 0.0)
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: None))

    def work() -> None:
        with processes.joined(PATIENCE):
            raise error

    code, line = ended(work)
    told = json.loads(store.held["contexture/end/1"])
    assert told == [code, f"process 1 of 2: {line}"] and str(error) in line
    assert ("contexture/suspicious" in store.held) == processes._job.suspicious == isinstance(error, RuntimeError)


@pytest.fixture
def joins(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What jax is asked to join with."""
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda **options: asked.append(options))
    monkeypatch.setattr(jax.config, "update", lambda name, value: asked.append({name: value}))
    for name in ("divert_native_errors", "answer_aborts"):
        monkeypatch.setattr(native_aborts, name, lambda *_: None)
    for name in ("_watch", "_watch_contact"):
        monkeypatch.setattr(processes, name, lambda: None)
    monkeypatch.setattr(processes, "_job", processes._Job())
    for name in ("NUM_PROCESSES", "PROCESS_ID", "COORDINATOR_ADDRESS", "COORDINATOR_BIND_ADDRESS"):
        monkeypatch.delenv(f"JAX_{name}", raising=False)
    return asked


def test_jax_joins_by_what_the_environment_says(joins, monkeypatch):
    monkeypatch.setenv("JAX_NUM_PROCESSES", "4")
    with pytest.raises(ConfigError, match="JAX_NUM_PROCESSES=4 describes a job of several processes, and this one"):
        processes.initialize(MeshConfig())
    monkeypatch.setenv("JAX_PROCESS_ID", "3")
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "host:12")
    processes.initialize(MeshConfig(distributed=True, startup_minutes=2, peer_minutes=3))
    assert joins == [
        {"jax_enable_preemption_service": False},
        {"num_processes": 4, "process_id": 3, "initialization_timeout": 123, "heartbeat_timeout_seconds": 4 * 180 + 60,
         "shutdown_timeout_seconds": 180, "coordinator_bind_address": "host:12"},
    ]  # fmt: skip
    monkeypatch.setenv("JAX_COORDINATOR_BIND_ADDRESS", "0.0.0.0:12")
    processes.initialize(MeshConfig(distributed=True, startup_minutes=0.05, peer_minutes=0.1))
    assert joins[-1]["coordinator_bind_address"] == "0.0.0.0:12"
    assert (joins[-1]["initialization_timeout"], joins[-1]["shutdown_timeout_seconds"]) == (6, 10)
    monkeypatch.setenv("JAX_NUM_PROCESSES", "1")
    processes.initialize(MeshConfig())  # one process needs nobody
    assert len(joins) == 4


@pytest.mark.parametrize(
    ("said", "kind", "line"),
    [
        ("DEADLINE_EXCEEDED: x", ProcessLost, "minutes"),
        ("no address\nmore", ConfigError, "mesh.distributed: no address Start"),
    ],
)
def test_a_job_that_does_not_come_together_is_one_line(joins, monkeypatch, said, kind, line):
    def fails(**_: object) -> None:
        raise RuntimeError(said)

    monkeypatch.setattr(jax.distributed, "initialize", fails)
    with pytest.raises(kind) as caught:
        processes.initialize(MeshConfig(distributed=True))
    assert line in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_text_of_native_code_is_held_back_from_its_first_sign_of_an_abort():
    script = """
import os, sys, time
from contexture.train.distributed import native_aborts
native_aborts.divert_native_errors()
for line in ("usual", "E coordination_service_agent.cc: failed", "  a frame of a stack"):
    os.write(2, (line + "\\n").encode())
while len(native_aborts._held) < 2:
    time.sleep(0.01)
print("Python's own", file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "usual\nPython's own\n")
