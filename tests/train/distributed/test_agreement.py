"""What processes of a job tell each other decides alike in all of them. `exchange` stands for the other processes."""

import contextlib
import json
from types import SimpleNamespace
from unittest.mock import Mock

import jax
import pytest

from contexture.train.distributed import processes
from contexture.train.distributed.agreement import agree_on_run
from contexture.train.errors import CheckpointError, ConfigError
from contexture.train.run.folder import write_run_json
from contexture.train.settings.run import Run
from contexture.train.settings.run_file import RunRecord
from contexture.train.settings.sections import MeshConfig


@pytest.mark.parametrize("other", [{"seed": 2, "text": "a"}, {"seed": 1}, {"seed": 1, "text": "a", "more": 3}], ids=str)
def test_a_fact_that_differs_between_processes_is_named_in_all(other, monkeypatch):
    facts = {"seed": 1, "text": "a"}
    name = next(name for name in ("seed", "text", "more") if facts.get(name) != other.get(name))
    for facts_of in ([facts, other], [facts, facts, other]):
        monkeypatch.setattr(
            processes, "exchange", lambda mine, minutes=0.0, facts_of=facts_of: [json.dumps(fact) for fact in facts_of]
        )
        for mine in facts_of:
            with pytest.raises(ConfigError, match=f"process {len(facts_of) - 1}.* has {name} .*; start them alike"):
                processes.agree(mine, "start them alike")
    monkeypatch.setattr(processes, "exchange", lambda mine, minutes=0.0: [mine] * 3)
    processes.agree(facts, "start them alike")


def test_a_job_of_several_processes_is_not_worked_on_alone(monkeypatch):
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    with pytest.raises(ConfigError, match="JAX_NUM_PROCESSES=2 .* give --mesh.distributed, or unset it"):
        processes.initialize(MeshConfig())
    for alone in ("1", ""):
        monkeypatch.setenv("JAX_NUM_PROCESSES", alone)
        processes.initialize(MeshConfig())


def test_a_failure_of_one_process_is_raised_in_all(monkeypatch):
    def fails() -> int:
        raise CheckpointError("the array is damaged")

    monkeypatch.setattr(processes, "_count", lambda: 2)
    monkeypatch.setattr(processes, "exchange", lambda mine: ["", mine or "the array is damaged"])
    for work in (fails, lambda: 1):
        with pytest.raises(CheckpointError, match="process 1.*: the array is damaged"):
            processes.together(work, CheckpointError)
    monkeypatch.setattr(processes, "exchange", lambda mine: [mine, ""])
    assert processes.together(lambda: 1, CheckpointError) == 1
    with pytest.raises(ZeroDivisionError):  # another kind of error is this process's own
        processes.together(lambda: 1 // 0, CheckpointError)


def test_a_process_that_has_finished_says_so_by_its_number(monkeypatch):
    told: list[tuple[str, str]] = []
    monkeypatch.setattr(processes, "_job", SimpleNamespace(finished=False, exit_code=None))
    monkeypatch.setattr(processes, "_set", lambda name, text: told.append((name, text)))
    monkeypatch.setattr(processes, "_me", lambda: 3)
    for joined, count, says in ((False, 4, []), (True, 1, []), (True, 4, [("done/3", "")])):
        monkeypatch.setattr("jax.distributed.is_initialized", lambda joined=joined: joined)
        monkeypatch.setattr(processes, "_count", lambda count=count: count)
        processes.finished(5)
        assert told == says and (processes._job.finished, processes._job.exit_code) == (
            (True, 5) if says else (False, None)
        )


@pytest.mark.parametrize("name", ["tokenizer", "data"])
def test_a_run_is_not_described_by_other_data_than_it_was_started_with(name, tmp_path):
    tokenizer, data = SimpleNamespace(fingerprint="a" * 64), SimpleNamespace(fingerprint="b" * 64)
    write_run_json(tmp_path, Run(), tokenizer, data, None)  # pyright: ignore[reportArgumentType]
    written = (tmp_path / "run.json").read_bytes()
    other = RunRecord(run=Run(), **{"tokenizer": "a" * 64, "data": "b" * 64, name: "c" * 64})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=f"the {name} is not the one that this run was started with"):
        write_run_json(tmp_path, Run(), tokenizer, data, other)  # pyright: ignore[reportArgumentType]
    assert (tmp_path / "run.json").read_bytes() == written


def test_devices_versions_and_options_must_agree_and_places_need_not(monkeypatch):
    asked: list[dict[str, object]] = []
    monkeypatch.setattr(processes, "agree", lambda facts, mend, minutes: asked.append(facts))
    agree_on_run(Run(dir="a"))
    (facts,) = asked
    assert facts["devices"] == [jax.devices()[0].device_kind] and facts["optim.peak_lr"] == Run().optim.peak_lr
    assert facts["the version of jax"] == jax.__version__ and not facts.keys() & {"dir", "data.path", "init.run"}


@pytest.mark.parametrize("named", [True, False])
def test_a_job_is_joined_by_its_numbers_or_by_what_jax_finds(monkeypatch, named):
    """Under SLURM, MPI and on TPU pods no variable is set, and jax finds number and count by itself."""
    given: dict[str, object] = {}
    for name, value in (("NUM_PROCESSES", "4"), ("PROCESS_ID", "0"), ("COORDINATOR_ADDRESS", "host:1234")):
        monkeypatch.setenv(f"JAX_{name}", value) if named else monkeypatch.delenv(f"JAX_{name}", raising=False)
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: False)
    monkeypatch.setattr(jax.distributed, "initialize", lambda **words: given.update(words))
    monkeypatch.setattr(jax.config, "update", lambda name, value: None)
    for name in ("divert_native_errors", "answer_aborts"):
        monkeypatch.setattr(processes.native_aborts, name, lambda *words: None)
    monkeypatch.setattr(processes.native_aborts, "register_within", lambda seconds: contextlib.nullcontext())
    monkeypatch.setattr(processes, "threading", SimpleNamespace(Timer=Mock(), Thread=Mock()))
    monkeypatch.setattr(processes, "_job", SimpleNamespace())
    monkeypatch.setattr(processes, "_address", lambda: "host:1234")
    processes.initialize(MeshConfig(distributed=True, startup_minutes=2.0, peer_minutes=1.0))
    numbers = {"num_processes": 4, "process_id": 0} if named else {"num_processes": None, "process_id": None}
    times = {"initialization_timeout": 123, "heartbeat_timeout_seconds": 300, "shutdown_timeout_seconds": 60}
    assert given == {**numbers, **times, "coordinator_bind_address": "host:1234" if named else None}
