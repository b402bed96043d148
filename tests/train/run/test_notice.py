"""A cloud's notice becomes a SIGTERM, and a job of several processes stops at one step."""

import logging
import signal
import threading
import time

import pytest

from contexture.train.run import notice
from tests.helpers.jobs import finish, free_port, recorded, start_process, wait_until
from tests.helpers.metadata_server import metadata_server

QUIET = {"preempted": "FALSE", "maintenance-event": "NONE"}


@pytest.fixture
def received(monkeypatch):
    """The signals that this process sends to itself."""
    numbers: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGTERM, before)


def until(condition, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return bool(condition())


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("notice-")]


@pytest.mark.parametrize(
    ("key", "value"), [("preempted", "TRUE"), ("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")]
)
def test_a_notice_while_the_run_goes_on_is_a_sigterm(received, monkeypatch, caplog, key, value):
    state = dict(QUIET)
    with metadata_server(state) as host, caplog.at_level(logging.WARNING):
        monkeypatch.setenv("GCE_METADATA_HOST", host)
        with notice.listening():
            time.sleep(0.3)
            assert not received
            state[key] = value
            assert until(lambda: received)
            time.sleep(0.2)
    assert received == [signal.SIGTERM]
    assert f"the cloud takes this machine away ({key}={value})" in caplog.text


@pytest.mark.parametrize(
    ("state", "signals", "said"),
    [
        # A machine that is preempted goes within half a minute; one whose maintenance is announced may stay for hours,
        # and a job that is started again on it would stop for ever.
        ({"preempted": "TRUE"}, 1, "takes this machine away (preempted=TRUE)"),
        ({"maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE"}, 0, "plans maintenance of this machine"),
        ({"maintenance-event": "MIGRATE_ON_HOST_MAINTENANCE"}, 0, "plans maintenance of this machine"),
        ({"upcoming-maintenance": '{"windowStartTime": "2027-01-02T03:04"}'}, 0, "(upcoming-maintenance=2027-01-02T03"),
        ({"upcoming-maintenance": "[1]"}, 0, "(upcoming-maintenance=[1])"),
    ],
)
def test_what_is_said_at_the_start_is_told_apart(received, monkeypatch, caplog, state, signals, said):
    with metadata_server({**QUIET, **state}) as host, caplog.at_level(logging.WARNING):
        monkeypatch.setenv("GCE_METADATA_HOST", host)
        with notice.listening():
            assert until(lambda: said in caplog.text), caplog.text
            time.sleep(0.2)
    assert len(received) == signals and caplog.text.count("this machine") == 1


def test_without_a_metadata_server_the_threads_end_at_once(received, monkeypatch, tmp_path):
    others = len(threads())
    with metadata_server(QUIET, flavor="Other") as host:
        for server in (host, f"127.0.0.1:{free_port()}"):
            monkeypatch.setenv("GCE_METADATA_HOST", server)
            with notice.listening():
                assert until(lambda: len(threads()) == others, 5)
    # Nor does a server that is none end the run, or print a traceback.
    for server in ("http://metadata", "[::1]:x", "a..b"):
        monkeypatch.setenv("GCE_METADATA_HOST", server)
        with notice.listening():
            assert until(lambda: len(threads()) == others, 5)
    # On a machine that is not the cloud's nothing is asked at all.
    monkeypatch.delenv("GCE_METADATA_HOST")
    (tmp_path / "product").write_text("Standard PC\n")
    for file, name in ((tmp_path / "product", ""), (tmp_path / "none", "")):
        monkeypatch.setattr(notice, "_PRODUCT", file)
        assert notice.server() == name
    (tmp_path / "product").write_text("Google Compute Engine\n")
    monkeypatch.setattr(notice, "_PRODUCT", tmp_path / "product")
    assert notice.server() == "metadata.google.internal"
    assert not received


def test_after_the_run_a_notice_does_nothing(received, monkeypatch):
    state, others = dict(QUIET), threads()
    with metadata_server(state) as host:
        monkeypatch.setenv("GCE_METADATA_HOST", host)
        with notice.listening():
            time.sleep(0.3)
        state["preempted"] = "TRUE"
        assert until(lambda: "notice-preempted" not in [each.name for each in threads() if each not in others])
    assert not received


def test_a_server_that_answers_at_once_is_asked_with_pauses(received, monkeypatch):
    asked: list[str] = []

    def at_once(host: str, key: str, tag: str) -> tuple[str, str]:
        asked.append(key)
        return QUIET.get(key, "NONE"), "tag"

    monkeypatch.setattr(notice, "_read", at_once)
    monkeypatch.setenv("GCE_METADATA_HOST", "somewhere")
    with notice.listening():
        time.sleep(0.5)
    assert len(asked) == 6 and not received


@pytest.mark.long
def test_a_notice_to_one_of_two_processes_stops_both_at_one_step(door, tiny_words, tmp_path):
    folder, port, state = tmp_path / "run", free_port(), dict(QUIET)
    words = [*tiny_words, "--steps", "100000", "--save.every", "100000"]
    with metadata_server(state) as host:
        told = lambda *given, env, **more: door(*given, env={**env, "GCE_METADATA_HOST": host}, **more)  # noqa: E731
        processes = [start_process(start, words, folder, port, n, 2) for n, start in enumerate((door, told))]
        wait_until(lambda: recorded(folder) >= 20, processes)
        state["preempted"] = "TRUE"
        done = finish(processes, 60)
    assert [code for code, _ in done] == [75, 75], done
    (saved,) = [int(step.name) for step in (folder / "checkpoints").glob("[0-9]*")]
    for _, stderr in done:
        assert f"SIGTERM: saved step {saved} in {folder}" in stderr.splitlines()[-1]
