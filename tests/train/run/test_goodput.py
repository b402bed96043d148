"""Goodput: where the wall time of a run went, over all its starts."""

import json
import random
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from contexture.train.checkpoints.status import describe_status, status
from contexture.train.run import goodput as module
from contexture.train.run.goodput import PARTS, Goodput, describe_goodput, from_process_start
from contexture.train.run.report import Record, Report, read_metrics
from tests.helpers.jobs import recorded, wait_until
from tests.helpers.parity_rule import assert_close


def totals(folder: Path) -> list[Record]:
    return [record for record in read_metrics(folder / "metrics.jsonl") if record["split"] == "goodput"]


def assert_parts_add_up(record: Record) -> None:
    parts = [record[f"{part}_seconds"] for part in PARTS]
    assert min(parts) >= 0
    assert_close(sum(parts), record["wall_seconds"], rtol=0.01, atol=0.005)
    if record["steps_seconds"]:
        assert_close(record["goodput"], record["steps_seconds"] / record["wall_seconds"], rtol=0, atol=0.001)


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on when the test says so: `clock.now += 3`."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_the_inner_part_counts_and_all_parts_are_the_wall_time(clock):
    goodput = Goodput()
    clock.now += 2
    with goodput.part("other"):
        with goodput.part("steps"):
            clock.now += 90
            with goodput.part("evaluating"):
                clock.now += 4
                with pytest.raises(OSError), goodput.part("saving"):
                    clock.now += 1
                    raise OSError
                clock.now += 0.5
            clock.now += 2
        clock.now += 0.5
    record = goodput.record(7)
    assert (record["step"], record["starts"], record["wall_seconds"], record["goodput"]) == (7, 1, 100.0, 0.92)
    named = {"start_up": 2, "steps": 92, "evaluating": 4.5, "saving": 1, "other": 0.5}
    assert all(record[f"{part}_seconds"] == named.get(part, 0) for part in PARTS)
    assert describe_goodput(record, 2) == "goodput 92.0% of 0:01:40: evaluating 4.5%, start-up 2.0%"


@pytest.mark.parametrize("seed", range(8))
def test_steps_that_a_kill_has_done_twice_are_counted_as_such(tmp_path, clock, seed):
    """Starts are killed at any step and resumed from their checkpoint, against a list of what each step took."""
    rng, saved, known = random.Random(seed), 0, dict.fromkeys(PARTS, 0.0)
    steps: dict[int, float] = {}
    for start in range(1, 6):
        # Steps beyond the checkpoint are done again.
        known["repeated_steps"] += sum(steps.pop(step) for step in [*steps] if step > saved)
        clock.now += 1000  # between two starts
        goodput = Goodput()
        clock.now += 1
        report = Report(tmp_path, steps=90, speaks=True, tensorboard=False, goodput=goodput)
        report.start(saved, 10)
        report.record([goodput.record(saved)], saved)
        known["start_up"] += 1
        # What is not in a record yet is lost with the process.
        open_steps, saving, resumed = dict[int, float](), 0.0, saved
        with goodput.part("steps"):
            for step in range(resumed + 1, resumed + rng.randint(2, 17)):
                open_steps[step] = rng.choice([1.0, 2.0, 3.0])
                clock.now += open_steps[step]
                if step % 4 == 0 or step % 10 == 0:
                    report.record([{"step": step, "split": "train", "loss": 1.0}, goodput.record(step)], saved)
                    steps |= open_steps
                    known["saving"] += saving
                    open_steps, saving = {}, 0.0
                if step % 10 == 0:
                    with goodput.part("saving"):
                        clock.now += 5
                    saving, saved = saving + 5, step
        report.close()
        record = totals(tmp_path)[-1]
        assert record["starts"] == start
        assert {part: record[f"{part}_seconds"] for part in PARTS} == {**known, "steps": sum(steps.values())}
        assert_parts_add_up(record)
    assert known["repeated_steps"] > 0


def test_a_damaged_record_and_a_run_without_records_count_nothing(tmp_path):
    assert Goodput().record(0)["starts"] == 1
    lines = [{"step": 1, "split": "train", "loss": 1.0}, {"step": 1, "split": "goodput", "steps_seconds": "x"}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = Report(tmp_path, steps=9, speaks=True, tensorboard=False)
    report.start(1, 9)
    record = report.goodput.record(1)
    report.close()
    assert record["steps_seconds"] == 0 and 0 <= record["wall_seconds"] < 60


def test_the_first_training_of_a_command_counts_from_its_process():
    from_process_start()
    first, second = Goodput(), Goodput()
    # Of this process, which has imported jax; a program's later trainings count from their call.
    assert 0.5 < time.monotonic() - first.began and time.monotonic() - second.began < 0.5


def test_a_training_says_where_its_time_went_and_status_too(tiny_run):
    record = totals(tiny_run)[-1]
    assert_parts_add_up(record)
    assert record["step"] == 40 and record["start_up_seconds"] > 0
    now = status(tiny_run)
    assert now["goodput"] == {name: x for name, x in record.items() if name not in ("step", "split")}
    assert describe_status(now).splitlines()[-1] == "  " + describe_goodput(record, 2)
    (said,) = re.findall(r"goodput ([0-9.]+)% of ", (tiny_run / "log.txt").read_text())
    assert float(said) == pytest.approx(100 * record["goodput"], abs=1)


@pytest.mark.long
def test_a_run_that_was_killed_counts_all_its_starts(door, tiny_words, tmp_path):
    folder, began = tmp_path / "run", time.monotonic()
    words = [*tiny_words, "--dir", folder, "--save.every", "200", "--log.every", "1", "--evaluate.every", "150"]
    first = door(*words, "--steps", "600", wait=False)
    wait_until(lambda: recorded(folder) >= 330, [first])
    first.kill()
    first.communicate()
    lived = time.monotonic() - began
    killed = totals(folder)[-1]
    # All but what was done since its last record.
    assert_parts_add_up(killed)
    assert 0.9 * lived < killed["wall_seconds"] < lived + 0.1
    began = time.monotonic()
    assert door(*words, "--steps", "600").returncode == 0
    lived = time.monotonic() - began
    record = totals(folder)[-1]
    assert_parts_add_up(record)
    assert record["starts"] == 2 and 0.8 * lived < record["wall_seconds"] - killed["wall_seconds"] < lived + 0.1
    # Steps 201 to 330 were done twice.
    at = next(each for each in totals(folder) if each["step"] == 200)
    lost = killed["steps_seconds"] - at["steps_seconds"]
    assert lost > 0
    assert_close(record["repeated_steps_seconds"], lost, rtol=0, atol=0.002)
    assert all(record[f"{part}_seconds"] > 0 for part in PARTS)
    assert "in 2 starts" in (folder / "log.txt").read_text()
