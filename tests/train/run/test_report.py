"""metrics.jsonl, in small: each step once, nothing beyond the restored checkpoint, null for what is none."""

import json
import math

import numpy as np

from contexture.train.run.report import Report, plain, read_metrics
from tests.helpers.logs import logged


def _report(folder, steps: int = 9) -> Report:
    return Report(folder, steps=steps, speaks=True, tensorboard=False)


def _records(first: int, last: int, **more):
    return [{"step": step, "split": "train", "loss": step / 3, **more} for step in range(first, last + 1)]


def _steps(folder) -> list[int]:
    return [record["step"] for record in read_metrics(folder / "metrics.jsonl")]


def test_lines_beyond_the_restored_step_are_cut_off(tmp_path):
    report = _report(tmp_path)
    report.start(0, 9)
    report.record(_records(1, 6) + [{"step": 6, "split": "dev", "loss": 1.0}], saved=6)
    report.close()
    assert _steps(tmp_path) == [1, 2, 3, 4, 5, 6, 6]
    again = _report(tmp_path)
    with logged() as lines:
        again.start(4, 9)
    assert _steps(tmp_path) == [1, 2, 3, 4] and not lines
    again.record(_records(5, 6), saved=6)
    again.close()
    assert _steps(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_a_run_begun_anew_keeps_no_line(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 0, "split": "dev", "loss": 2.0}) + "\n")
    report = _report(tmp_path)
    report.start(0, 9)
    report.close()
    assert _steps(tmp_path) == []


def test_lines_wait_for_the_checkpoint_that_they_need(tmp_path):
    report = _report(tmp_path)
    report.start(0, 0)
    report.record(_records(1, 5), saved=3)
    assert _steps(tmp_path) == [1, 2, 3]
    report.release(4)
    assert _steps(tmp_path) == [1, 2, 3, 4]
    report.close()
    assert _steps(tmp_path) == [1, 2, 3, 4]


def test_torn_lines_and_lines_of_something_else_are_left_out(tmp_path):
    good = [json.dumps(record) for record in _records(1, 3)]
    torn = [good[0], "[1, 2]", '{"step": "2", "split": "train"}', '{"step": 2}', good[1], good[2][:-4]]
    (tmp_path / "metrics.jsonl").write_text("\n".join(torn))
    assert _steps(tmp_path) == [1, 2]
    report = _report(tmp_path)
    with logged() as lines:
        report.start(3, 9)
    report.close()
    assert "holds 2 of the 3 steps done" in lines[-1]


def test_floats_are_whole_and_what_is_not_finite_is_null(tmp_path):
    report = _report(tmp_path)
    report.start(0, 9)
    third = np.float32(1) / 3
    report.record(
        [{"step": 1, "split": "train", "loss": third, "grad_norm": math.inf, "skipped": np.int32(2)}], saved=1
    )
    report.close()
    (record,) = read_metrics(tmp_path / "metrics.jsonl")
    assert record == {"step": 1, "split": "train", "loss": float(third), "grad_norm": None, "skipped": 2}
    assert plain(math.nan) is None and plain(0.1) == 0.1 and plain(np.float64(0.1)) == 0.1
