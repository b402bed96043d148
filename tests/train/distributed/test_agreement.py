"""What processes of a job tell each other decides alike in all of them. `exchange` stands for the other processes."""

import json
from types import SimpleNamespace

import pytest

from contexture.train.distributed import processes
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
